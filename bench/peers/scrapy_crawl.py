"""Crawls with Scrapy: scrapy_crawl.py SEEDS DELAY_SECONDS"""

import sys

from scrapy import Request
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

with open(sys.argv[1]) as file:
    SEEDS = file.read().split()
DELAY = float(sys.argv[2])


class Sites(CrawlSpider):
    name = "sites"
    rules = [Rule(LinkExtractor())]

    async def start(self):
        for seed in SEEDS:
            yield Request(seed)


process = CrawlerProcess(
    {
        "USER_AGENT": "scrapy-peer",
        "ROBOTSTXT_OBEY": True,
        "DOWNLOAD_DELAY": DELAY,
        "RANDOMIZE_DOWNLOAD_DELAY": False,
        "CONCURRENT_REQUESTS": max(len(SEEDS), 100),
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1 if DELAY else 8,
        # As its documentation recommends for broad crawls.
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "COOKIES_ENABLED": False,
        "RETRY_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Sites)
process.start()
