"""An operator for Apache Airflow (3.3 or later) that runs a crawl as a job of Tidings.

The operator opens the job, adds the seeds and closes it. Then it defers: it waits for the end of
the crawl in the triggerer, and occupies no worker slot.

Copy this file into the folder `plugins` of Airflow, and create the connection `tidings_default`:
host and port of the broker's HTTP interface, schema `http` (default) or `https`, and as password a
token with the permissions `job:JOB` and `sub:job-done`, if the broker requires one.
"""

import asyncio
import random
from typing import Any

import httpx
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

SEEDS_OF_A_REQUEST = 1000
WAIT_SECONDS = 30
LONGEST_PAUSE_SECONDS = 60


class TidingsCrawlOperator(BaseOperator):
    """Runs one pass of a job and returns the words of its event on `job-done`; counts are numbers.

    If the job is running already, for example after a retry, its pass is continued. If it is done,
    its next pass begins.

    :param job: name of the job; a fixed name crawls the same site again
    :param urls: seeds
    :param settings: other fields of `POST /jobs`, such as `{"scope": "prefix", "max-time": "2h"}`
    :param max_failed: fail the task if more pages than this failed; None allows any number
    :param group: group of the crawlers
    :param conn_id: connection of the broker
    """

    template_fields = ("job", "urls", "settings", "group")

    def __init__(
        self,
        *,
        job: str,
        urls: list[str],
        settings: dict[str, Any] | None = None,
        max_failed: int | None = None,
        group: str = "crawlers",
        conn_id: str = "tidings_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.urls = urls
        self.settings = settings or {}
        self.max_failed = max_failed
        self.group = group
        self.conn_id = conn_id
        self._is_open = False

    def execute(self, context: Any) -> None:
        """Starts the pass and defers until its end."""
        with self._client() as client:
            # Read before the job begins, so its end cannot be published before this position.
            position = request(client, "GET", "/topics/job-done/state")["next"]
            self._is_open = True
            self._job_request(client, "/jobs", {"job": self.job, **self.settings})
            for first in range(0, len(self.urls), SEEDS_OF_A_REQUEST):
                seeds = {"urls": self.urls[first : first + SEEDS_OF_A_REQUEST]}
                self._job_request(client, f"/jobs/{self.job}/urls", seeds)
            job = self._job_request(client, f"/jobs/{self.job}/close")
        self.log.info("job %s, pass %d: waiting for its end", self.job, job["pass"])
        trigger = TidingsJobTrigger(
            conn_id=self.conn_id,
            group=self.group,
            job=self.job,
            number=job["number"],
            pass_number=job["pass"],
            position=position,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Checks the result. A cancelled crawl is not retried: a person or program stopped it."""
        self.log.info("job %s: %s", self.job, event)
        if event["result"] == "cancelled":
            raise AirflowFailException(f"job {self.job}: pass {event['pass']} was cancelled")
        if self.max_failed is not None and event["failed"] > self.max_failed:
            raise AirflowException(
                f"job {self.job}: {event['failed']} pages failed; max_failed is {self.max_failed}"
            )
        return event

    def on_kill(self) -> None:
        """Cancels the job if the task is killed before it defers; later the trigger does so."""
        if self._is_open:
            with self._client() as client:
                self._job_request(client, f"/jobs/{self.job}/cancel")

    def _client(self) -> httpx.Client:
        return httpx.Client(**client_settings(BaseHook.get_connection(self.conn_id)))

    def _job_request(self, client: httpx.Client, path: str, body: Any = None) -> Any:
        return request(client, "POST", path, params={"group": self.group}, json=body)


class TidingsJobTrigger(BaseTrigger):
    """Waits for the end of one pass of a job, and yields the words of its event on `job-done`.

    The topic is a stored log, so an event that was published before the trigger started, or while
    the broker was unreachable, is still read. `position` is a seq before that of the event.
    """

    def __init__(
        self, *, conn_id: str, group: str, job: str, number: int, pass_number: int, position: int
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.group = group
        self.job = job
        self.number = number
        self.pass_number = pass_number
        self.position = position

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns what the triggerer needs to create the trigger again."""
        names = ("conn_id", "group", "job", "number", "pass_number", "position")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self):
        """Reads the topic until the event comes. Errors that may pass are tried again."""
        pause = 1
        async with await self._client() as client:
            while True:
                try:
                    # In this order: if the pass was over before the read, its event is in the log.
                    is_over = await self._is_over(client)
                    page = await self._read(client)
                    pause = 1
                except (httpx.TransportError, httpx.HTTPStatusError) as error:
                    if not may_pass(error):
                        raise AirflowException(describe(error)) from error
                    self.log.warning("%s: trying again in at most %d s", describe(error), pause)
                    # Random, so that many triggers do not come back at the same time.
                    await asyncio.sleep(pause * random.uniform(0.5, 1))
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    continue
                for event in page["events"]:
                    words = parse_event(event["payload"])
                    if self._is_expected(words):
                        yield TriggerEvent(words)
                        return
                if is_over and not page["events"]:
                    raise AirflowException(f"job {self.job}: its event on job-done is lost")
                self.position = page["next"]

    async def on_kill(self) -> None:
        """Cancels the job if a person marks or clears the deferred task."""
        async with await self._client() as client:
            path = f"/jobs/{self.job}/cancel"
            checked(await client.post(path, params={"group": self.group}))

    async def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**client_settings(await BaseHook.aget_connection(self.conn_id)))

    async def _is_over(self, client: httpx.AsyncClient) -> bool:
        """Whether the pass is over. A job that does not exist any more is an error."""
        job = checked(await client.get(f"/jobs/{self.job}", params={"group": self.group}))
        if job["number"] != self.number:
            raise AirflowException(f"job {self.job} was deleted and opened again")
        return job["state"] == "done" or job["pass"] > self.pass_number

    async def _read(self, client: httpx.AsyncClient) -> Any:
        parameters = {"from": self.position, "wait": f"{WAIT_SECONDS}s"}
        return checked(await client.get("/topics/job-done", params=parameters))

    def _is_expected(self, words: dict[str, Any]) -> bool:
        names = ("group", "job", "number", "pass")
        return [words.get(name) for name in names] == [
            self.group,
            self.job,
            self.number,
            self.pass_number,
        ]


def parse_event(payload: str) -> dict[str, Any]:
    """Returns the words of an event on `job-done`: its first word as `job`, counts as numbers."""
    job, *attributes = payload.split()
    pairs = dict(word.partition("=")[::2] for word in attributes)
    return {"job": job} | {key: int(v) if v.isdecimal() else v for key, v in pairs.items()}


def client_settings(connection: Any) -> dict[str, Any]:
    """Returns the arguments of an httpx client for a connection of Airflow."""
    port = f":{connection.port}" if connection.port else ""
    token = connection.password
    return {
        "base_url": f"{connection.schema or 'http'}://{connection.host}{port}",
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        # Longer than the broker lets a read wait.
        "timeout": WAIT_SECONDS + 30,
    }


def checked(response: httpx.Response) -> Any:
    """Returns the JSON of a response; raises for an error."""
    response.raise_for_status()
    return response.json()


def request(client: httpx.Client, method: str, path: str, **arguments: Any) -> Any:
    """Sends a request; an error has the message of the broker."""
    try:
        return checked(client.request(method, path, **arguments))
    except httpx.HTTPError as error:
        raise AirflowException(describe(error)) from error


def describe(error: httpx.HTTPError) -> str:
    """Returns the text of an error, with the answer of the broker."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.request.url}: {error.response.status_code}: {error.response.text.strip()}"
    return f"{error.request.url}: {error or type(error).__name__}"


def may_pass(error: httpx.HTTPError) -> bool:
    """Whether the same request can succeed later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.is_server_error
    return True
