"""A WebSub hub or subscriber on the independent library Flask-WebSub.

websub_peer.py subscriber FEED | hub

Prints its port and then its events as lines of JSON. A subscriber subscribes at the hub that the feed
names, and then reads commands from standard input: `renew`, `unsubscribe`."""
import json, sys, tempfile, threading

from flask import Flask
from flask_websub.hub import Hub, SQLite3HubStorage
from flask_websub.subscriber import SQLite3SubscriberStorage, SQLite3TempSubscriberStorage, Subscriber, discover
from werkzeug.serving import make_server

app, printing = Flask(__name__), threading.Lock()

def report(**fields):
    with printing:
        print(json.dumps(fields), flush=True)

class Task:
    """Runs at once on its own thread, where Celery would use another process."""
    def __init__(self, function):
        self.function = function

    def delay(self, *arguments):
        threading.Thread(target=self.function, args=arguments, daemon=True).start()

class Tasks:
    def task(self, bind=False, max_retries=None):
        return lambda function: Task((lambda *arguments: function(self, *arguments)) if bind else function)

    def retry(self, countdown):
        report(event="not taken")

class Storage(SQLite3HubStorage):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        report(event="subscribed", secret=bool(value["secret"]), lease=value["lease_seconds"])

    def __delitem__(self, key):
        super().__delitem__(key)
        report(event="unsubscribed")

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
    def confirmed(topic, number, mode):
        report(event=mode, topic=topic)

    @subscriber.add_error_handler
    def denied(topic, number, reason):
        report(event="denied", topic=topic, reason=reason)

    # Flask-WebSub calls this only if the signature is valid.
    @subscriber.add_listener
    def received(topic, number, body):
        signed = bool(subscriber.storage[number]["secret"])
        report(event="told", topic=topic, body=body.decode(), signed=signed)

server = make_server("127.0.0.1", 0, app, threaded=True)
app.config["SERVER_NAME"] = f"127.0.0.1:{server.port}"
threading.Thread(target=server.serve_forever, daemon=True).start()
report(port=server.port)
if sys.argv[1] == "subscriber":
    with app.app_context():
        number = subscriber.subscribe(**discover(sys.argv[2]), lease_seconds=86400)
        for line in sys.stdin:
            {"renew": subscriber.renew, "unsubscribe": subscriber.unsubscribe}[line.strip()](number)
threading.Event().wait()
