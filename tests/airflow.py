"""Runs examples/airflow with a real Airflow, broker and crawler; run by `.ci/long airflow`.

    airflow.py TIDINGS ROUNDS

Needs the Python of the environment in which Airflow is installed. Airflow has one worker slot, so
several crawls can only wait at once if a waiting crawl occupies none.
"""

import atexit
import contextlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil

EXAMPLES = Path(__file__).parent.parent / "examples/airflow"
DAG = "crawl_docs"
# More than `max_failed` of the DAG.
DEAD_LINKS = 12


class Site(http.server.BaseHTTPRequestHandler):
    """Serves start pages with links to two pages and missing ones; many for the job `bad`."""

    def do_GET(self):
        folder, _, page = self.path.rpartition("/")
        missing = DEAD_LINKS if folder.startswith("/bad") else 1
        links = ["a", "b", *(f"missing{n}" for n in range(missing))]
        body = "".join(f'<a href="{link}">x</a>' for link in links) if page == "" else page
        self.send_response(200 if page in ("", "a", "b") else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def free_port():
    """Returns a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, check, seconds=180):
    """Waits until `check` returns a true value, and returns it."""
    print(f"waiting: {what}", flush=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if value := check():
                return value
        time.sleep(0.2)
    raise AssertionError(f"this did not happen in {seconds} s: {what}")


class Programs:
    """The processes of the test, each with a log file in its folder."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment
        self.running = {}
        atexit.register(self.kill_all)

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name):
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_all(self):
        for name in list(self.running):
            self.kill(name)

    def run(self, *command):
        subprocess.run(command, env=self.environment, cwd=self.folder, check=True)


class Broker:
    """A broker and its crawler: the processes of `tidings up`."""

    def __init__(self, programs, binary, line_port, http_port):
        self.programs = programs
        self.binary = binary
        self.address = f"127.0.0.1:{line_port}"
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{http_port}", timeout=30)
        self.command = (binary, "up", "--listen", self.address, "--http", f"127.0.0.1:{http_port}")

    def start(self):
        self.programs.start("broker", *self.command, "--data", "data", "--allow-private")
        wait_for("the broker is ready", lambda: self.client.get("/ready").is_success)

    def command_line(self, *words):
        self.programs.run(self.binary, *words, "--broker", self.address)

    def job(self, name):
        return self.client.get(f"/jobs/{name}").raise_for_status().json()

    def ends(self, job):
        """Returns the events of `job-done` for a job."""
        page = (
            self.client.get("/topics/job-done", params={"from": "first"}).raise_for_status().json()
        )
        return [e["payload"] for e in page["events"] if e["payload"].startswith(f"{job} ")]


class Airflow:
    """Airflow as separate processes, with its REST interface."""

    components = ("api-server", "scheduler", "dag-processor")

    def __init__(self, programs, port):
        self.programs = programs
        self.program = str(Path(sys.executable).parent / "airflow")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def start(self):
        self.programs.run(self.program, "db", "migrate")
        for component in self.components:
            self.start_component(component)
        token = wait_for("Airflow answers", lambda: self.client.get("/auth/token").json())
        self.client.headers["Authorization"] = f"Bearer {token['access_token']}"
        wait_for("the DAG is loaded", lambda: self.client.get(f"/api/v2/dags/{DAG}").is_success)

    def start_component(self, name):
        self.programs.start(name, self.program, name)

    def trigger(self, job, url):
        body = {"dag_run_id": job, "logical_date": None, "conf": {"job": job, "url": url}}
        self.client.post(f"/api/v2/dags/{DAG}/dagRuns", json=body).raise_for_status()

    def state(self, job, task="crawl"):
        return self.get(job, task)["state"]

    def get(self, job, path):
        path = f"/api/v2/dags/{DAG}/dagRuns/{job}/taskInstances/{path}"
        return self.client.get(path).raise_for_status().json()

    def wait_for_state(self, job, state, task="crawl"):
        def has_state():
            now = self.state(job, task)
            assert now in (state, None, "scheduled", "queued", "running", "deferred"), (job, now)
            return now == state

        wait_for(f"{job}: {task} is {state}", has_state)

    def set_failed(self, job):
        path = f"/api/v2/dags/{DAG}/dagRuns/{job}/taskInstances/crawl"
        self.client.patch(path, json={"new_state": "failed"}).raise_for_status()

    def log(self, job):
        files = self.programs.folder.glob(f"logs/*/run_id={job}/**/*.log")
        return "".join(file.read_text() for file in files)

    def wait_for_deferral(self, *jobs):
        for job in jobs:
            self.wait_for_state(job, "deferred")
        # Airflow notices the end of a process up to 5 s late. If a task is resumed before, Airflow
        # takes that end for the end of the resumed task, and fails it.
        wait_for("no process runs a task", lambda: not self.task_processes())

    def task_processes(self):
        """Returns the titles of processes that run a task."""
        scheduler = psutil.Process(self.programs.running["scheduler"].pid)
        titles = []
        for process in scheduler.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                titles.append(" ".join(process.cmdline()))
        return [t for t in titles if t.startswith("airflow worker") and "<idle>" not in t]


def check_counts(airflow, job, failed):
    """The counts that the task returned are those of the site."""
    value = airflow.get(job, "crawl/xcomEntries/return_value?stringify=false")["value"]
    found = {name: value[name] for name in ("job", "result", "completed", "failed", "found")}
    expected = {"job": job, "result": "done", "completed": 3, "failed": failed, "found": 3 + failed}
    assert found == expected, found


def crawl_before_triggerer(airflow, broker, url):
    """A crawl that is done before its trigger starts succeeds."""
    airflow.trigger("early", url("early"))
    airflow.wait_for_deferral("early")
    wait_for("the crawl is done", lambda: broker.job("early")["state"] == "done")
    assert airflow.state("early") == "deferred"
    airflow.start_component("triggerer")
    airflow.wait_for_state("early", "success")
    check_counts(airflow, "early", failed=1)


def round_of_crawls(airflow, broker, url, number):
    """Four crawls wait at once while the broker is killed; each ends as it must."""
    good, bad, cancelled, killed = (
        f"{name}{number}" for name in ("good", "bad", "cancelled", "killed")
    )
    broker.command_line("group", "pause")
    for job in (good, bad, cancelled, killed):
        airflow.trigger(job, url(job))
    airflow.wait_for_deferral(good, bad, cancelled, killed)

    broker.programs.kill("broker")
    for job in (good, bad, cancelled, killed):
        wait_for(f"{job}: connection lost", lambda job=job: "trying again" in airflow.log(job))
        assert airflow.state(job) == "deferred", job
    broker.start()

    broker.command_line("job", "cancel", cancelled, "--yes")
    airflow.wait_for_state(cancelled, "failed")
    assert f"job {cancelled}: pass 1 was cancelled" in airflow.log(cancelled)
    airflow.set_failed(killed)
    wait_for("the job of a killed task is cancelled", lambda: broker.ends(killed))
    assert " result=cancelled " in broker.ends(killed)[0]
    assert airflow.state(good) == airflow.state(bad) == "deferred"

    broker.command_line("group", "resume")
    airflow.wait_for_state(bad, "failed")
    assert f"job {bad}: {DEAD_LINKS} pages failed; max_failed is 10" in airflow.log(bad)
    airflow.wait_for_state(good, "success")
    check_counts(airflow, good, failed=1)
    airflow.wait_for_state(good, "success", task="report")
    for job in (good, bad, cancelled, killed):
        assert len(broker.ends(job)) == 1, broker.ends(job)


def main():
    """Starts everything, and runs the crawls."""
    binary, rounds = str(Path(sys.argv[1]).resolve()), int(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="tidings-airflow-"))
    print(f"logs in {folder}", flush=True)
    for name, file in (("plugins", "tidings_airflow.py"), ("dags", "crawl_docs.py")):
        (folder / name).mkdir()
        shutil.copy(EXAMPLES / file, folder / name)
    line_port, http_port, api_port = free_port(), free_port(), free_port()
    secret = "a secret of this test, with more than 64 bytes, which all components of Airflow share"
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW_CONN_TIDINGS_DEFAULT": f"http://127.0.0.1:{http_port}",
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api_port),
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api_port}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        # No scheduled run, which would crawl another site.
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    programs = Programs(folder, environment)
    broker = Broker(programs, binary, line_port, http_port)
    airflow = Airflow(programs, api_port)

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()

    def url(job):
        return f"http://127.0.0.1:{site.server_port}/{job}/"

    broker.start()
    airflow.start()
    crawl_before_triggerer(airflow, broker, url)
    for number in range(rounds):
        round_of_crawls(airflow, broker, url, number)
    programs.kill_all()
    shutil.rmtree(folder)
    print(f"passed: {1 + 4 * rounds} crawls")


if __name__ == "__main__":
    main()
