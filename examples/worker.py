"""A worker for Tidings, written from docs/protocol: python3 worker.py [HOST [PORT]]
It makes one request at a time; start several for more. Do not use it on the open internet: it reads
no robots.txt (docs/protocol/worker.md shows how), and limits neither addresses nor the size of responses."""
import contextlib, html.parser, http.client, re, secrets, signal, socket, string, sys, time
from urllib import parse, request
GROUP, REQUEST_S, SILENCE_S, now = "crawlers", 20, 300, time.monotonic

class Worker:
    resume, unsaid = "", {}  # commands that end a task, by its id, for when it is sent again
    def run(self, host="127.0.0.1", port=12345):
        while True:
            try:
                self.join(host, port, credit=1)
                while True:
                    self.tasks = self.tasks or [self.line()]  # only tasks arrive without a request
                    sent = now()
                    self.ahead = int(field(self.ask("PING"), "clock")) / 1000 - sent  # or less [T3]
                    self.work(*self.tasks.pop(0).split()[1:5])
            except (OSError, StopIteration) as lost:
                print(f"connecting again: {lost!r}", file=sys.stderr)
                time.sleep(1)
            except KeyboardInterrupt:  # or SIGTERM: held tasks are sent again; return them [T11]
                return self.join(host, port, credit=0)

    def join(self, host, port, credit):
        """Connects as the same member. The broker sends its tasks again; they are returned [T9]."""
        self.socket = socket.create_connection((host, port), SILENCE_S)
        self.lines, self.tasks = self.socket.makefile(encoding="utf-8", newline="\n"), []
        echo = f" echo={secrets.token_hex(8)} "
        self.socket.sendall(f"HELLO name=worker.py{echo}{self.resume}\n".encode())
        hello = next(line for line in self.lines if echo in line)  # other lines are for peers [S6]
        self.resume = f"resume={field(hello, 'resume')}"
        held = int(field(self.ask(f"JOIN {GROUP} credit={credit}"), "held"))
        for task in [self.line().split()[1] for _ in range(held)]:
            self.ask(*self.unsaid.get(task, [f"NACK {task} count=no"]))

    def ask(self, *lines):
        """Sends LINK lines and a command; returns its answer [A1]. Tasks may precede it [A2]."""
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())
        while (answer := self.line()).startswith("TASK "):
            self.tasks.append(answer)
        return answer

    def line(self):
        line = self.lines.readline().rstrip()
        if not line or re.match("-ERR (?!stale )", line):  # the end [E3], or an error to retry
            raise (SystemExit if line.startswith("-ERR replaced ") else ConnectionError)(line)
        return line

    def work(self, task, clock, lease, url):
        begun, lease = int(clock) / 1000 - self.ahead, int(lease) / 1000
        while now() - begun > lease / 10:  # too old to start, unless the lease can be renewed [T3]
            begun = now()
            if not self.ask(f"TOUCH {task}").startswith("+OK"):
                return
        self.unsaid = {task: [f"NACK {task} again={url}"]}  # in case this process is stopped now
        self.unsaid = {task: fetch(task, url, min(now() + REQUEST_S, begun + lease * 0.8))}
        if self.unsaid[task][-1] == f"ACK {task}":  # a real worker would store the page now;
            self.ask(f"TOUCH {task} over=yes")  # the host need not wait for that [T4]
        print(self.unsaid[task][-1], url, flush=True)
        self.ask(*self.unsaid[task])

def fetch(task, url, deadline):
    """Makes the one request of a task [T2], with a timeout; returns the lines to send for it."""
    signal.setitimer(signal.ITIMER_REAL, max(deadline - now(), 0.001), 1)
    try:
        with request.urlopen(url) as answer:
            status, headers, page = answer.status, answer.headers, answer.read()
        if status in (301, 302, 303, 307, 308) and headers["Location"]:
            target = absolute(url, headers["Location"])
            return [f"LINK {task} {target} kind=redirect", f"ACK {task} outcome=redirect"]
        if status >= 300:
            again, wait = status in (408, 425, 429) or status > 499, headers["Retry-After"] or ""
            wait = f" not-before={wait}s" if wait.isdecimal() and len(wait) < 9 else ""
            return [f"NACK {task} reason={status}{wait}" if again else f"ACK {task} outcome=failed"]
        tags, parser = [], html.parser.HTMLParser()
        parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
        parser.feed(page.decode("utf-8", "replace") if "html" in headers.get_content_type() else "")
        links = {absolute(url, at["href"]): 1 for tag, at in tags if tag == "a" and at.get("href")}
        return [*(f"LINK {task} {link}" for link in links), f"ACK {task}"]  # each link once [C7]
    except (OSError, ValueError, AssertionError, http.client.HTTPException) as failure:
        return [f"NACK {task} reason={type(failure).__name__}"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

def absolute(base, link):
    with contextlib.suppress(ValueError):  # the broker rejects an invalid URL
        link = parse.urldefrag(parse.urljoin(base, link)).url
    return parse.quote(link, safe=string.punctuation)  # one word of ASCII
def field(line, key):
    return re.search(rf" {key}=(\S+)", line)[1]
def out_of_time(*_):
    raise http.client.HTTPException  # with an OSError, the client would try the next address

signal.signal(signal.SIGALRM, out_of_time)
signal.signal(signal.SIGTERM, signal.default_int_handler)
processor = request.HTTPErrorProcessor  # does not follow redirects: they become tasks [T2]
processor.http_response = processor.https_response = lambda self, request, answer: answer
Worker().run(*sys.argv[1:])
