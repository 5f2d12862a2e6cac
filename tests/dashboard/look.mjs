// Every page in light and dark, wide and narrow: what axe finds, and the tree of roles and names.
// usage: look.mjs ADDRESS OPERATOR FILE; with UPDATE=1 in the environment, FILE is written

import { strictEqual as same } from 'node:assert/strict';
import { axeViolations, main, openTab } from './browser.mjs';
import { Outlines } from './outline.mjs';
import { pages, show } from './pages.mjs';

const [address, token, file] = process.argv.slice(2);
const outlines = new Outlines(file);

await main(async browser => {
  const violations = [];
  let visited = 0;
  for (const colorScheme of ['light', 'dark']) {
    const tab = await openTab(browser, `${address}#token=${token}`, { colorScheme });
    for (const width of [1280, 320]) {
      await tab.page.setViewportSize({ width, height: 900 });
      for (const [name, page] of Object.entries(pages)) {
        await show(tab, page);
        const where = `${name}, ${colorScheme}, ${width} px`;
        violations.push(...(await axeViolations(tab)).map(text => `${where}: ${text}`));
        const found = await tab.page.evaluate(() => document.scrollingElement.scrollWidth);
        same(found, width, `${where}: the page is ${found} px wide`);
        const cut = await tab.page.locator('.table .table-box').evaluateAll(boxes => boxes
          .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent));
        same(width === 320 ? cut.join() : '', '', `${where}: a part of a table is out of sight`);
        if (width === 1280 && colorScheme === 'light') {
          await outlines.expect(tab, name);
        }
        visited += 1;
      }
    }
    await outlines.expect(tab, 'menu', 'header.top');
  }
  same(violations.join('\n'), '');
  outlines.save();
  return { visited };
});
