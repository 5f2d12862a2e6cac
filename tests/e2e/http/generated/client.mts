// Publishes, reads, opens a job and waits for it, with the types that were generated from the
// description. `tsc` fails if a name or a type here is not in it.
import createClient from "openapi-fetch";

import type { paths } from "./api.js";

const [url, page] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url });

function expect(actual: unknown, expected: unknown): void {
    const [a, b] = [actual, expected].map((value) => JSON.stringify(value));
    if (a !== b) throw new Error(`${a} is not ${b}`);
}

const topic = { path: { topic: "news" } };
const put = await client.PUT("/topics/{topic}", { params: topic, body: { "retain-age": "7d" } });
expect([put.data?.topic, put.data?.["retain-age"]], ["news", "7d"]);
const body = { events: ["https://a.example/ prio=5"] };
const published = await client.POST("/topics/{topic}", { params: topic, body });
expect(published.data?.seqs, [1]);
const read = await client.GET("/topics/{topic}", { params: { ...topic, query: { from: "first" } } });
expect(read.data?.events.map((event) => [event.seq, event.payload]), [[1, "https://a.example/ prio=5"]]);
const topics = await client.GET("/topics");
expect(topics.data?.topics.some((each) => each.topic === "news"), true);

const job = { job: "docs", urls: [page], "max-depth": 0, close: true };
const opened = await client.POST("/jobs", { body: job });
expect(opened.data?.job, "docs");
const query = { wait: "60s" };
const done = await client.GET("/jobs/{job}", { params: { path: { job: "docs" }, query } });
expect([done.data?.state, done.data?.completed, done.data?.failed], ["done", 1, 0]);
const refused = await client.GET("/jobs/{job}", { params: { path: { job: "no-such-job" } } });
expect(refused.error?.code, "unknown");
