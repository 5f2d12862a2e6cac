//! What `HELP` says: for the person in telnet.

/// One line of the answer each.
pub(super) const HELP: &str = "\
Tidings: say what happened in one line; everybody who cares hears it at once.

Every line you type now is a command. (A connection whose first line is no command is a
notifier: its lines are events on the topic new-url, and it hears those of others.)

  PUB <topic> <text>           tell everybody:   PUB new-url http://example.org/
                               +OK 17 1: it is event 17, your 1st publish, and it is safe
  SUB <topic> [from=..]        listen:           SUB new-url from=-10
                               from= first, last, a number, -n for the newest n, or a time like
                               2026-01-31T12:00:00Z; without it: what comes.
                               LAG: these events are gone; GAP: these numbers never had one
                               as=<name>: the broker remembers how far you are, and
                               SEEN <topic> <n> says so; what was not SEEN comes again
  UNSUB <topic>                stop listening:   UNSUB new-url
  TOPIC ls | show <topic>      which topics there are, and how far they are
  TOPIC create <topic> [sync=..] [retain-bytes=..] [retain-age=..]
                               also: set, delete, verify; forget <topic> cursor=<name>

  JOB open <name> [scope=..] [max-depth=n] [max-pages=n] a crawl of its own, then its start pages:
                               JOB open docs scope=host
                               PUB new-url http://example.org/docs/ job=docs
                               JOB close docs
  JOB ls | show <name> | pause | resume | cancel | delete; wait <name> answers when it is done,
                               and watch <name> says how it goes until then (so does GROUP watch)
  GROUP ls | show <name> | set <name> delay=2s           how polite the crawlers are
  GROUP tasks <name> [state=..] [key=..]                 what is in there; state=dead: given up,
                               GROUP retry <name> sends it back; also: pause, resume, purge
  EXPLAIN <url or host> [group=..]     why is this not moving?   EXPLAIN http://example.org/

  PING, STATS                  are you there; how much is going on
  QUIT                         end (Ctrl-D works, too)

For programs: HELLO, JOIN, LINK, ACK, NACK, TOUCH; PROTOCOL.md has all of it.
Answers are +OK .. or -ERR <code> <why>; lines of a longer answer begin with +. Try: SUB new-url";
