#!/usr/bin/env bash
# Package: feedparser 6.0.14 (PyPI)
# Input: an RSS 2.0 item with <guid>post-17</guid>, without <link>, with an enclosure: a podcast.
#   The same feed at two addresses. RSS says that a guid without isPermaLink="false" is a URL, but
#   many feeds have such guids.
# Guess: `id` is the text of the guid, and `link` is missing or the enclosure.
# Behaviour: the guid is resolved against the address of the feed. It becomes `link`, a page that
#   does not exist, and also `id`. So the same item has another id at another address, for example
#   after a move from http to https, and looks new. With isPermaLink="false" neither happens.
# Output:
#   http://a.example/feed: id=http://a.example/post-17 link=http://a.example/post-17
#   https://b.example/rss/feed: id=https://b.example/rss/post-17 link=https://b.example/rss/post-17
#   isPermaLink="false": id=post-17 link=None
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install feedparser==6.0.14

cat > read.py <<'P'
import feedparser


def read(address, guid):
    text = f"""<rss version="2.0"><channel><title>t</title><link>http://a.example/</link>
        <description>d</description><item><title>Seventeen</title>{guid}
        <enclosure url="http://a.example/17.mp3" length="5" type="audio/mpeg"/></item>
        </channel></rss>"""
    item = feedparser.parse(text, response_headers={"content-location": address}).entries[0]
    return f"id={item.id} link={item.get('link')}"


for address in ["http://a.example/feed", "https://b.example/rss/feed"]:
    print(f"{address}: {read(address, '<guid>post-17</guid>')}")
print('isPermaLink="false":', read(address, '<guid isPermaLink="false">post-17</guid>'))
P
seen=$(venv/bin/python read.py)
echo "$seen"
[ "$seen" = 'http://a.example/feed: id=http://a.example/post-17 link=http://a.example/post-17
https://b.example/rss/feed: id=https://b.example/rss/post-17 link=https://b.example/rss/post-17
isPermaLink="false": id=post-17 link=None' ]
