//! The text of `HELP`, for a person in telnet.

/// Each line is one line of the answer.
pub(super) const HELP: &str = "\
Tidings delivers one-line events to all subscribers at once.

This connection is a client now: each line is a command. (A connection whose first line is not
a command is a peer: its lines are events on the topic new-url, and it receives the others.)

  PUB <topic> <text>           publish an event: PUB new-url http://example.org/
                               +OK 17 1: seq 17, your 1st publish, confirmed
  SUB <topic> [from=..]        subscribe:        SUB new-url from=-10
                               from= first, last, a seq, -n for the newest n, or a time such as
                               2026-01-31T12:00:00Z; default: new events only
                               LAG: these events are gone; GAP: these seqs are empty
                               as=<name>: a durable cursor, which SEEN <topic> <seq> moves;
                               the next SUB continues behind the last SEEN
                               where=<key>=<value>, where=<key>!=<value>: only such events;
                               SKIP: no matching event is left up to this seq
  UNSUB <topic>                unsubscribe:      UNSUB new-url
  TOPIC ls | show <topic>      topics, with their seqs and settings
  TOPIC create <topic> [sync=..] [retain-bytes=..] [retain-age=..]
                               also: set, delete, verify; forget <topic> cursor=<name>

  JOB open <name> [scope=..] [max-depth=n] [max-pages=n]   a crawl; then publish its seeds:
                               JOB open docs scope=host
                               PUB new-url http://example.org/docs/ job=docs
                               JOB close docs
  JOB ls | show <name> | set | pause | resume | cancel | delete; wait <name> answers at its end,
                               watch <name> reports its progress (so does GROUP watch)
  GROUP ls | show <name> | set <name> delay=2s     groups, and the delay between requests to a host
  GROUP tasks <name> [state=..] [key=..]           entries of a group; state=dead: dead letters,
                               GROUP retry <name> retries them; also: pause, resume, purge, bump
  GROUP members <name>         its workers;  GROUP drain <name> member=<member>: no further tasks
  GROUP rule <name> key=<host> block=yes           block a host; also: pause=yes, delay=5s, for=1h;
                               GROUP unrule <name> key=<host>;  GROUP rules <name>
  EXPLAIN <url or host> [group=..]     why does a URL wait?   EXPLAIN http://example.org/

  PING, STATS                  the broker's clock; its counters
  QUIT                         close the connection (or type Ctrl-D)

For programs: HELLO, JOIN, LINK, ACK, NACK, TOUCH; see tidings-protocol(7).
Answers are +OK .. or -ERR <code> <why>; lines of a longer answer begin with +. Try: SUB new-url";
