# A process of the torture: _child.sh WITNESS KIND [ARGUMENT...]. What it does is known beforehand.
#
# It writes into WITNESS that it began, and with which pid, and when it is about to end: whoever reads
# that afterwards knows what was started, how often, and what ended by itself.

witness=$1 kind=$2
shift 2

note() {
    read -r now rest </proc/uptime
    echo "$1 $$ $now" >>"$witness"
}

note began
case $kind in
exit) # CODE SECONDS
    [ "$2" = 0 ] || sleep "$2"
    note ends
    exit "$1"
    ;;
pattern) # CODE PATTERN PIECES SIZE SECONDS [ERRORS]: so many pieces, with pauses in between
    code=$1 pattern=$2 pieces=$3 size=$4 seconds=$5 errors=${6:-0}
    piece=0
    while [ "$piece" -lt "$pieces" ]; do
        tail -c +$((piece * size + 1)) "$pattern" | head -c "$size"
        piece=$((piece + 1))
        [ "$seconds" = 0 ] || sleep "$seconds"
    done
    [ "$errors" = 0 ] || head -c "$errors" "$pattern" >&2
    note ends
    exit "$code"
    ;;
signal) # SIGNAL SECONDS
    echo ready
    [ "$2" = 0 ] || sleep "$2"
    note ends
    kill -s "$1" $$
    sleep 60 # the signal is on its way
    ;;
sleep)
    echo ready
    exec sleep 900
    ;;
handler) # CODE: what it exits with when it is asked to
    trap 'note asked; exit '"$1" TERM
    echo ready
    while :; do
        sleep 0.2 &
        wait $!
    done
    ;;
deaf)
    trap '' TERM HUP
    echo ready
    while :; do
        sleep 1
    done
    ;;
echo) # CODE: lines come back until there are no more
    echo ready
    while IFS= read -r line; do
        echo "got $line"
    done
    note ends
    exit "$1"
    ;;
daemon) # CODE SECONDS: leaves somebody behind who has a session of his own and is deaf
    setsid sh -c 'trap "" TERM HUP
        echo "daemon $$" >>"$1"
        while :; do sleep 1; done' daemon "$witness" </dev/null >/dev/null 2>&1 &
    echo ready
    sleep "$2"
    note ends
    exit "$1"
    ;;
family)
    for member in 1 2 3; do
        (trap '' HUP; sleep 900 & sleep 900) &
    done
    echo ready
    wait
    ;;
esac
