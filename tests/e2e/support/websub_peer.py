"""WebSub as Flask-WebSub has it, which nobody of us has written: websub_peer.py subscriber FEED | hub
What happens is printed as lines of JSON, the port first. A subscriber asks the hub that the feed names, and then does what the lines
that it reads say: `renew`, `unsubscribe`."""
import json, sys, tempfile, threading

from flask import Flask
from flask_websub.hub import Hub, SQLite3HubStorage
from flask_websub.subscriber import SQLite3SubscriberStorage, SQLite3TempSubscriberStorage, Subscriber, discover
from werkzeug.serving import make_server

app, printing = Flask(__name__), threading.Lock()

def say(**what):
    with printing:
        print(json.dumps(what), flush=True)

class Task:
    """Works at once, on a thread of its own, where Celery would have a process do it."""
    def __init__(self, work):
        self.work = work

    def delay(self, *arguments):
        threading.Thread(target=self.work, args=arguments, daemon=True).start()

class Tasks:
    def task(self, bind=False, max_retries=None):
        return lambda work: Task((lambda *arguments: work(self, *arguments)) if bind else work)

    def retry(self, countdown):
        say(event="not taken")

class Storage(SQLite3HubStorage):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        say(event="subscribed", secret=bool(value["secret"]), lease=value["lease_seconds"])

    def __delitem__(self, key):
        super().__delitem__(key)
        say(event="unsubscribed")

folder = tempfile.mkdtemp()
file = folder + "/peer.db"
if sys.argv[1] == "hub":
    hub = Hub(Storage(file), Tasks())
    app.config["PUBLISH_SUPPORTED"] = True
    app.register_blueprint(hub.build_blueprint(url_prefix="/hub"))
else:
    subscriber = Subscriber(SQLite3SubscriberStorage(file), SQLite3TempSubscriberStorage(file))
    app.register_blueprint(subscriber.build_blueprint(url_prefix="/callbacks"))

    @subscriber.add_success_handler
    def agreed(topic, number, mode):
        say(event=mode, topic=topic)

    @subscriber.add_error_handler
    def denied(topic, number, reason):
        say(event="denied", topic=topic, reason=reason)

    # Called with what is signed as it has to be.
    @subscriber.add_listener
    def told(topic, number, body):
        signed = bool(subscriber.storage[number]["secret"])
        say(event="told", topic=topic, body=body.decode(), signed=signed)

server = make_server("127.0.0.1", 0, app, threaded=True)
app.config["SERVER_NAME"] = f"127.0.0.1:{server.port}"
threading.Thread(target=server.serve_forever, daemon=True).start()
say(port=server.port)
if sys.argv[1] == "subscriber":
    with app.app_context():
        number = subscriber.subscribe(**discover(sys.argv[2]), lease_seconds=86400)
        for line in sys.stdin:
            {"renew": subscriber.renew, "unsubscribe": subscriber.unsubscribe}[line.strip()](number)
threading.Event().wait()
