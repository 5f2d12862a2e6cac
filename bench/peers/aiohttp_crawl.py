"""Crawls with asyncio, aiohttp and selectolax: aiohttp_crawl.py SEEDS DELAY_SECONDS

One coroutine per host and one session for all of them. Each link to the host is fetched once.
"""

import asyncio
import sys
from collections import deque
from urllib.parse import urldefrag, urljoin
from urllib.robotparser import RobotFileParser

import aiohttp
import uvloop
from selectolax.lexbor import LexborHTMLParser

AGENT = "aiohttp-peer"


async def crawl(session, seed, delay):
    root = urljoin(seed, "/")
    robots = RobotFileParser()
    async with session.get(root + "robots.txt") as response:
        robots.parse((await response.text()).splitlines())
    waiting, seen = deque([seed]), {seed}
    while waiting:
        url = waiting.popleft()
        if not robots.can_fetch(AGENT, url):
            continue
        if delay:
            await asyncio.sleep(delay)
        async with session.get(url) as response:
            body = await response.read()
        for node in LexborHTMLParser(body).css("a[href]"):
            link = urldefrag(urljoin(url, node.attributes["href"])).url
            if link.startswith(root) and link not in seen:
                seen.add(link)
                waiting.append(link)


async def main(seeds, delay):
    # No limit: each host has one request at a time.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    headers = {"User-Agent": AGENT}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        async with asyncio.TaskGroup() as hosts:
            for seed in seeds:
                hosts.create_task(crawl(session, seed, delay))


with open(sys.argv[1]) as file:
    uvloop.run(main(file.read().split(), float(sys.argv[2])))
