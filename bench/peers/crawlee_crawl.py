"""Crawls with Crawlee, without a browser: crawlee_crawl.py SEEDS"""

import asyncio
import logging
import sys

from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient


async def main(seeds):
    crawler = ParselCrawler(
        concurrency_settings=ConcurrencySettings(
            min_concurrency=100, desired_concurrency=100, max_concurrency=200
        ),
        respect_robots_txt_file=True,
        max_request_retries=0,
        configuration=Configuration(purge_on_start=True),
        storage_client=MemoryStorageClient(),
        configure_logging=False,
        statistics_log_format="inline",
    )

    @crawler.router.default_handler
    async def page(context: ParselCrawlingContext) -> None:
        await context.enqueue_links(strategy="same-hostname")

    await crawler.run(seeds)


logging.disable(logging.WARNING)
with open(sys.argv[1]) as file:
    asyncio.run(main(file.read().split()))
