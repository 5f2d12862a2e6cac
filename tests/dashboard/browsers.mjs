// Reads what the page of crawlers shows of browsers, of which one renders and two pages wait.
// usage: browsers.mjs ADDRESS

import { main, openTab } from './browser.mjs';
import { show } from './pages.mjs';

const [address] = process.argv.slice(2);

await main(async browser => {
  const tab = await openTab(browser, address);
  await show(tab, ['#/crawlers', '1 of 1 in a browser, 2 wait for one']);
  return tab.page.getByText(/ pages? left, /).textContent();
});
