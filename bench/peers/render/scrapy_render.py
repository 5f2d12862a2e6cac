"""Crawls with Scrapy and Playwright: scrapy_render.py SEEDS BROWSER"""

import sys

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor
from scrapy_playwright.page import PageMethod

with open(sys.argv[1]) as file:
    SEEDS = file.read().split()


def rendered(url):
    wait = PageMethod("wait_for_selector", "a[href]")
    return Request(url, meta={"playwright": True, "playwright_page_methods": [wait]})


class Sites(Spider):
    name = "sites"
    links = LinkExtractor()

    async def start(self):
        for seed in SEEDS:
            yield rendered(seed)

    def parse(self, response):
        for link in self.links.extract_links(response):
            yield rendered(link.url)


handler = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
process = CrawlerProcess(
    {
        "DOWNLOAD_HANDLERS": {"http": handler, "https": handler},
        "PLAYWRIGHT_LAUNCH_OPTIONS": {"executable_path": sys.argv[2]},
        "PLAYWRIGHT_MAX_PAGES_PER_CONTEXT": 6,
        "PLAYWRIGHT_ABORT_REQUEST": lambda request: request.resource_type
        in ("image", "font", "media"),
        "USER_AGENT": "scrapy-peer",
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS": 6,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 6,
        "RETRY_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Sites)
process.start()
