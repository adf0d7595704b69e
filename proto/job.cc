#include "proto/job.h"
