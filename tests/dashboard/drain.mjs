// Drains a worker on the page of crawlers, and gives another one tasks again.
// usage: drain.mjs ADDRESS DRAINED OTHER (names of workers)

import { main, openTab, tell, until } from './browser.mjs';
import { show } from './pages.mjs';

const [address, drained, other] = process.argv.slice(2);

await main(async browser => {
  const tab = await openTab(browser, address);
  const { page } = tab;
  const row = name => page.getByRole('row').filter({ hasText: name });
  const has = (name, state) => row(name).getByText(state, { exact: true }).waitFor();
  const press = async (name, action) => {
    await row(name).getByRole('button', { name: action }).click();
    const said = await until('a sentence', () => page.locator('#said-text').textContent());
    await page.getByRole('button', { name: 'Close' }).click();
    return said;
  };

  await show(tab, ['#/crawlers', '2 workers connected']);
  const said = [await press(drained, `Drain ${drained}`)];
  await has(drained, 'draining');
  await tell('publish a page of another host');
  await tell('answer the request of the drained crawler');
  await has(drained, 'drained');
  await tell('stop the drained crawler');
  await page.getByRole('row').filter({ hasText: 'drained, not connected' }).waitFor();
  await page.getByText('1 worker connected').waitFor();
  said.push(await press(other, `Drain ${other}`));
  await has(other, 'drained');
  await tell('publish a page for no crawler');
  said.push(await press(other, `Give tasks again to ${other}`));
  await has(other, 'active');
  await tell('wait for its page');
  return said;
});
