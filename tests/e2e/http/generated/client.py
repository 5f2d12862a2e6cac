"""Publishes, reads, opens a job and waits for it with the Python client that was generated from the
description: python client.py URL PAGE, in the folder of the client."""

import sys

from tidings_client import Client
from tidings_client.api.jobs import open_job, show_job
from tidings_client.api.topics import list_topics, publish, put_topic, read
from tidings_client.models import Events, NewJob, TopicSettings

url, page = sys.argv[1:]
client = Client(base_url=url, raise_on_unexpected_status=True)

topic = put_topic.sync("news", client=client, body=TopicSettings(retain_age="7d"))
assert (topic.topic, topic.retain_age) == ("news", "7d"), topic
published = publish.sync("news", client=client, body=Events(events=["https://a.example/ prio=5"]))
assert published.seqs == [1], published
read_back = read.sync("news", client=client, from_="first")
assert [(it.seq, it.payload) for it in read_back.events] == [(1, "https://a.example/ prio=5")], read_back
assert "news" in [it.topic for it in list_topics.sync(client=client).topics]

job = open_job.sync(client=client, body=NewJob(job="docs", urls=[page], max_depth=0, close=True))
assert job.job == "docs", job
done = show_job.sync("docs", client=client, wait="60s")
assert (done.state, done.completed, done.failed) == ("done", 1, 0), done
refused = show_job.sync("no-such-job", client=client)
assert refused.code == "unknown", refused
