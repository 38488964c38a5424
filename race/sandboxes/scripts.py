"""What runs inside of a sandbox besides what it is asked to run, where it can only be reached by running something:
scripts for any POSIX shell.
"""

from __future__ import annotations

OWN = "/.race"
"""A folder inside for what goes in and out; no change of the sandbox."""

HOLD = "trap 'exit 0' TERM INT; while :; do sleep 100000 & wait $!; done"
"""PID 1: it waits, and takes in the processes that others leave."""

AROUND = r"""
# MARK CWD SCRIPT(file or -) INPUT(file, - for none, = for its own) MERGED(1 or 0) [PROGRAM ARGUMENT ...]
mark=$1 script=$3 input=$4 merged=$5
cd "$2" 2>/dev/null || { printf '\0%s cwd\n' "$mark"; exit 0; }
shift 5
mkdir -p /.race
if [ "$script" != - ]; then
  if command -v bash >/dev/null; then set -- bash --noprofile --norc -c; else set -- sh -c; fi
  if [ "$(wc -c <"$script")" -gt 100000 ]; then set -- "$@" ". $script"
  else set -- "$@" "$(cat "$script")"; rm -f "$script"; fi
fi
if [ "$input" = - ]; then exec </dev/null; elif [ "$input" != = ]; then exec <"$input"; rm -f "$input"; fi
said=/.race/$mark.said
: >"$said"
# What the command prints goes through these, which read on when nobody takes it any more: what it leaves running may
# print without being ended for it.
relay() { trap '' PIPE; cat 2>/dev/null; cat >/dev/null; rm -f "$1"; }
mkfifo "/.race/$mark.o" "/.race/$mark.e"
(relay "/.race/$mark.o") <"/.race/$mark.o" &
(relay "/.race/$mark.e") <"/.race/$mark.e" >&2 &
exec 7>"/.race/$mark.o" 8>"/.race/$mark.e" 2>"$said" >/dev/null
if [ "$merged" = 1 ]; then exec 8>&7; fi
RACE_EXEC=$mark; export RACE_EXEC
(
  exec >&7 2>&8 7>&- 8>&-
  if command -v setsid >/dev/null; then exec setsid "$@"; else exec "$@"; fi
)
code=$?
by=exit
# A shell says so when a signal ended a program, which its status alone does not tell; of these two it does not.
if [ $code -gt 128 ] && { [ -s "$said" ] || [ $code = 130 ] || [ $code = 141 ]; }; then by=signal; fi
times >"$said"
{ read -r used; read -r used; } <"$said"
rm -f "$said" "/.race/$mark.script"
printf '\0%s %s %s %s\n' "$mark" "$by" "$code" "$used" >&7
[ "$merged" = 1 ] || printf '\0%s\n' "$mark" >&8
exec 7>&- 8>&-
# All of it has to be taken before this shell ends, with which the streams do.
n=0
while [ -e "/.race/$mark.o" ] || [ -e "/.race/$mark.e" ]; do
  if [ -e "/.race/$mark.done" ] || [ $n -ge 500 ]; then break; fi
  n=$((n + 1)); sleep 0.01 2>/dev/null || sleep 1
done
rm -f "/.race/$mark.done"
"""
"""Around every command: it says at the end of both streams how the command ended."""

END = r"""
# MARK: end every process with this mark in its environment, and all below it
mark=$1
seen=
rm -f "/.race/$mark".*
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  found=" $(grep -l "RACE_EXEC=$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | tr '\n' ' ')"
  more=1
  while [ $more = 1 ]; do
    more=0
    for file in /proc/[0-9]*/stat; do
      { read -r line <"$file"; } 2>/dev/null || continue
      pid=${line%% *} rest=${line##*) }
      set -- $rest
      case $1 in Z|X) continue;; esac
      case $found in *" $pid "*) continue;; esac
      case "$found$seen" in *" $2 "*) found="$found$pid " more=1;; esac
    done
  done
  alive=
  for pid in $found; do
    [ "$pid" = $$ ] || [ "$pid" = 1 ] || { kill -STOP $pid 2>/dev/null && alive="$alive $pid"; }
  done
  new=
  for pid in $alive; do case "$seen" in *" $pid "*) ;; *) new=1 seen="$seen $pid ";; esac; done
  if [ -z "$new" ]; then
    for pid in $seen; do kill -KILL $pid 2>/dev/null; done
    left=
    for pid in $seen; do
      { read -r line <"/proc/$pid/stat"; } 2>/dev/null || continue
      rest=${line##*) }
      case $rest in Z*|X*) ;; *) left=1;; esac
    done
    [ -n "$left" ] || exit 0
  fi
done
for pid in $seen; do kill -KILL $pid 2>/dev/null; done
exit 0
"""

PLACE = r"""
parent() { [ -d "${1:-/}" ] || { parent "${1%/*}"; rm -rf "$1"; mkdir "$1" && chmod 755 "$1"; }; }
clear() { if [ -L "$1" ] || [ -d "$1" ]; then rm -rf "$1"; fi; }
file() { parent "${2%/*}"; clear "$2"; mv -f "$1" "$2" && chmod "$3" "$2" || exit 1; }
link() { parent "${1%/*}"; rm -rf "$1"; ln -s "$2" "$1" || exit 1; }
folder() {
  parent "${1%/*}"
  if [ -L "$1" ] || [ ! -d "$1" ]; then rm -rf "$1"; mkdir "$1" || exit 1; fi
  chmod "$2" "$1"
}
gone() { rm -rf "$1"; }
"""
"""Functions with which a written script puts staged files into their places."""


def quoted(text: bytes) -> bytes:
    """A word for a shell that stands for these bytes."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
