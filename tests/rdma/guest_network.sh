# Sourced in the guest: makes its Soft-RoCE devices, in place of those that are there. Argument: one, pair
# or lossy (run_in_guest.sh).
# shellcheck shell=bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

no_device() {
  unset TANDEM_RDMA_HOSTS TANDEM_RDMA_LINK
  local end
  for end in 0 1 2; do
    rdma link delete "rxe$end" 2>/dev/null
    ip link delete "rdma$end" 2>/dev/null
  done
  ip rule add pref 0 lookup local 2>/dev/null
  for end in 1 2 3; do ip rule delete pref "$end" 2>/dev/null && ip rule delete pref "$end" 2>/dev/null; done
  return 0
}

one_device() {
  ip link add rdma0 type dummy && ip link set rdma0 mtu 9000 up &&
    ip addr add 192.0.2.1/24 dev rdma0 && rdma link add rxe0 type rxe netdev rdma0 || return
  export TANDEM_RDMA_HOSTS=192.0.2.1 TANDEM_RDMA_LINK=rdma0 # a link that tests may take down
}

# Both ends of the pair are this machine's, so the kernel would deliver by itself what should travel.
# Rules make packets between the two addresses leave by their own end and be taken in at the other.
two_devices() {
  local end other
  ip link add rdma1 type veth peer name rdma2 || return
  for end in 1 2; do
    other=$((3 - end))
    ip link set "rdma$end" mtu 9000 up
    ip addr add "10.9.0.$end/24" dev "rdma$end"
    sysctl -qw "net.ipv4.conf.rdma$end.accept_local=1" "net.ipv4.conf.rdma$end.rp_filter=0" \
      "net.ipv4.conf.rdma$end.arp_ignore=1"
    ip route add 10.9.0.0/24 dev "rdma$end" table "10$end"
    ip rule add pref 1 iif "rdma$end" lookup local
    ip rule add pref 2 from "10.9.0.$end" to "10.9.0.$other" lookup "10$end"
  done
  sysctl -qw net.ipv4.conf.all.rp_filter=0
  ip rule add pref 3 lookup local && ip rule del pref 0 || return
  for end in 1 2; do rdma link add "rxe$end" type rxe netdev "rdma$end" || return; done
  export TANDEM_RDMA_HOSTS=10.9.0.1,10.9.0.2 TANDEM_RDMA_LINK=rdma2
}

ulimit -l unlimited
ip link set lo up
no_device
case $1 in
  one) one_device ;;
  pair) two_devices ;;
  lossy)
    two_devices &&
      for end in 1 2; do tc qdisc add dev "rdma$end" root netem loss 1% delay 0.5ms limit 100000 || return; done
    ;;
  *) echo "guest_network.sh: no network '$1'" >&2; return 1 ;;
esac
