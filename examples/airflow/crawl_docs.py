"""A DAG that crawls a site every night and prints the counts."""

import datetime

from airflow.sdk import dag, task
from tidings_airflow import TidingsCrawlOperator


@dag(
    schedule="@daily",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    params={"job": "docs", "url": "https://example.org/docs/"},
)
def crawl_docs():
    """Crawls the site, then prints the counts."""

    @task
    def report(counts):
        print(f"{counts['completed']} pages, {counts['failed']} failed")

    crawl = TidingsCrawlOperator(
        task_id="crawl",
        job="{{ params.job }}",
        urls=["{{ params.url }}"],
        settings={"scope": "prefix", "max-time": "2h"},
        max_failed=10,
    )
    report(crawl.output)


crawl_docs()
