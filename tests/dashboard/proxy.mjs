// The dashboard below a path of a proxy. usage: proxy.mjs ADDRESS OPERATOR

import { main, openTab, until } from './browser.mjs';
import { pages, show } from './pages.mjs';

const [address, token] = process.argv.slice(2);

await main(async browser => {
  const tab = await openTab(browser, `${address}#token=${token}`, { ignoreHTTPSErrors: true });
  for (const page of Object.values(pages)) {
    await show(tab, page);
  }
  const strays = tab.requests.map(each => each.url()).filter(url => !url.startsWith(address));
  if (strays.length > 0) {
    throw new Error(`not below the path of the proxy: ${strays.join(' ')}`);
  }
  await show(tab, pages.group);
  await tab.page.getByRole('button', { name: 'Pause', exact: true }).click();
  await tab.page.getByText('paused: it releases no task').waitFor();
  // The stream comes through the proxy as it is sent.
  await show(tab, pages.overview);
  return null;
});
