"""Fetches pages whose URLs are pushed to Redis, with scrapy-redis: scrapy_redis_notify.py PORT"""

import sys

from scrapy.crawler import CrawlerProcess
from scrapy_redis.spiders import RedisSpider


class Notified(RedisSpider):
    name = "notified"
    redis_key = "notified:start_urls"

    def parse(self, response):
        pass


process = CrawlerProcess(
    {
        "REDIS_PORT": int(sys.argv[1]),
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "ERROR",
    }
)
process.crawl(Notified)
process.start()
