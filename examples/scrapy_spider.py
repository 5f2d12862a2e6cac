"""A Scrapy spider that takes its requests from a group of Tidings, and acknowledges them:
    scrapy runspider scrapy_spider.py -a broker=127.0.0.1:12345 -O pages.jsonl
The broker keeps the delay of each host and the seen set, and gives a page to another worker if this one is lost.
Scrapy fetches and parses. A task is one request [T2], so the broker turns redirects into tasks. The spider does not
read robots.txt; docs/protocol/worker.md shows how a worker does."""
import asyncio, re, secrets

import scrapy

CREDIT = 16


class TidingsSpider(scrapy.Spider):
    name = "tidings"
    group = "crawlers"
    broker = "127.0.0.1:12345"
    custom_settings = {
        "CONCURRENT_REQUESTS": CREDIT,
        # The broker does all of this.
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": CREDIT,
        "ROBOTSTXT_OBEY": False,
        "REDIRECT_ENABLED": False,
        "RETRY_ENABLED": False,
        "HTTPERROR_ALLOW_ALL": True,
        # Shorter than a lease (60 s), so a request ends before another worker gets its task [T3].
        "DOWNLOAD_TIMEOUT": 40,
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    }

    async def start(self):
        host, _, port = self.broker.rpartition(":")
        reader, self.writer = await asyncio.open_connection(host, int(port), limit=1 << 17)
        echo = f" echo={secrets.token_hex(8)} "
        self.say(f"HELLO name=scrapy{echo}", f"JOIN {self.group} credit={CREDIT}")
        while line := (await reader.readline()).decode():
            if line.startswith("-ERR ") and not line.startswith("-ERR stale "):
                raise scrapy.exceptions.CloseSpider(line.strip())
            if line.startswith("TASK "):
                # Not split(): it also splits at other white space, so a payload could forge an attribute.
                _, task, _, _, url, *attributes = re.split("[ \t]+", line.strip(" \t\r\n"))
                again = [word[6:] for word in attributes if word.startswith("again=")]
                # Not filtered here: the broker has the seen set.
                yield scrapy.Request(
                    again[0] if again else url, self.parse, errback=self.failed, dont_filter=True, meta={"task": task}
                )

    def say(self, *lines):
        self.writer.write("".join(f"{line}\n" for line in lines).encode())

    def parse(self, response):
        task, status = response.meta["task"], response.status
        target = response.headers.get("Location")
        if status in (301, 302, 303, 307, 308) and target:
            target = response.urljoin(target.decode("latin-1"))
            return self.say(f"LINK {task} {target} kind=redirect", f"ACK {task} outcome=redirect")
        if status in (408, 425, 429) or status >= 500:
            return self.say(f"NACK {task} reason=status-{status}")
        if status >= 300:
            return self.say(f"ACK {task} outcome=failed")
        links = {}
        if isinstance(response, scrapy.http.HtmlResponse):
            found = (response.urljoin(href.strip()) for href in response.css("a::attr(href)").getall())
            links = {scrapy.Request(link).url: 1 for link in found if link.startswith("http")}
        # With this the page counts as fetched. If it must not be lost, store it first.
        self.say(*(f"LINK {task} {link}" for link in links), f"ACK {task}")
        return {"url": response.url, "status": status, "bytes": len(response.body), "links": len(links)}

    def failed(self, failure):
        task = failure.request.meta["task"]
        self.say(f"NACK {task} reason={failure.type.__name__}")
