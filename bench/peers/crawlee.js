// Crawls with Crawlee and Playwright: crawlee.js SEEDS BROWSER

import { readFileSync } from "node:fs";
import { Configuration, PlaywrightCrawler, log } from "@crawlee/playwright";

const [seeds, executablePath] = process.argv.slice(2);
log.setLevel(log.LEVELS.ERROR);

const crawler = new PlaywrightCrawler(
  {
    minConcurrency: 6,
    maxConcurrency: 6,
    maxRequestRetries: 0,
    respectRobotsTxtFile: true,
    launchContext: { launchOptions: { executablePath, headless: true } },
    browserPoolOptions: { useFingerprints: false },
    // Styles, images and fonts. Unlike a route, this keeps the browser's cache.
    preNavigationHooks: [({ blockRequests }) => blockRequests()],
    async requestHandler({ page, enqueueLinks }) {
      await page.waitForSelector("a[href]");
      await page.content();
      await enqueueLinks({ strategy: "same-hostname" });
    },
  },
  new Configuration({ persistStorage: false }),
);
const { requestsFailed } = await crawler.run(readFileSync(seeds, "utf8").trim().split("\n"));
if (requestsFailed > 0) {
  console.error(`${requestsFailed} pages failed`);
  process.exitCode = 1;
}
