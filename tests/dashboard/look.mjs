// Every page, its dialogs, and the login, in light and dark, wide and narrow: what axe finds, and
// the tree of roles and names.
// usage: look.mjs ADDRESS OPERATOR FILE; with UPDATE=1 in the environment, FILE is written

import { strictEqual as same } from 'node:assert/strict';
import { axeViolations, main, openTab } from './browser.mjs';
import { Outlines } from './outline.mjs';
import { pages, show } from './pages.mjs';

const [address, token, file] = process.argv.slice(2);
const outlines = new Outlines(file);
const violations = [];

// What axe finds in a part of the page, and whether all of it fits the width.
async function check(tab, where, width, place = 'html') {
  violations.push(...(await axeViolations(tab, place)).map(text => `${where}: ${text}`));
  const found = await tab.page.evaluate(() => document.scrollingElement.scrollWidth);
  same(found, width, `${where}: the page is ${found} px wide`);
}

// The buttons that open a dialog: the first one of each kind, as their places among all buttons.
const openers = ({ page }) => page.locator('main button').evaluateAll(all => {
  const kinds = new Map();
  all.forEach((each, index) => {
    // What is unseen names the row.
    const text = [...each.childNodes].filter(({ className }) => className !== 'unseen')
      .map(node => node.textContent).join('');
    const kind = each.getAttribute('aria-haspopup') ?? text;
    if (/^dialog$|…$|^Cancel$/.test(kind) && each.checkVisibility() && !kinds.has(kind)) {
      kinds.set(kind, index);
    }
  });
  return [...kinds];
});

async function checkDialogs(tab, where, width) {
  const { page } = tab;
  const dialog = page.locator('dialog');
  // Actions on chosen rows need one.
  const box = page.locator('main tbody input[type="checkbox"]');
  if (await box.count() > 0) {
    await box.first().check();
  }
  const found = await openers(tab);
  for (const [kind, index] of found) {
    await page.locator('main button').nth(index).click();
    await dialog.waitFor();
    const at = `${where}, ${kind}`;
    await check(tab, at, width, 'dialog');
    const cut = await dialog.evaluate(node => node.scrollWidth > node.clientWidth);
    same(cut, false, `${at}: a part of the dialog is out of sight`);
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
  }
  return found.length;
}

await main(async browser => {
  let visited = 0;
  const dialogs = new Set();
  for (const [colorScheme, dialogWidth] of [['light', 1280], ['dark', 320]]) {
    const tab = await openTab(browser, `${address}#token=${token}`, { colorScheme });
    let seen = 0;
    for (const width of [1280, 320]) {
      await tab.page.setViewportSize({ width, height: 900 });
      for (const [name, page] of Object.entries(pages)) {
        await show(tab, page);
        const where = `${name}, ${colorScheme}, ${width} px`;
        await check(tab, where, width);
        const cut = await tab.page.locator('.table .table-box').evaluateAll(boxes => boxes
          .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent));
        same(width === 320 ? cut.join() : '', '', `${where}: a part of a table is out of sight`);
        if (width === 1280 && colorScheme === 'light') {
          await outlines.expect(tab, name);
        }
        if (width === dialogWidth) {
          seen += await checkDialogs(tab, where, width);
        }
        visited += 1;
      }
    }
    await outlines.expect(tab, 'menu', 'header.top');
    await tab.page.setViewportSize({ width: dialogWidth, height: 900 });
    await show(tab, ['#/jobs/almanac', 'Resume']);
    seen += await checkDialogs(tab, `a job that runs, ${colorScheme}`, dialogWidth);
    dialogs.add(seen);
    await tab.page.getByRole('button', { name: 'Log out' }).click();
    await tab.page.getByRole('heading', { name: 'Log in to Tidings' }).waitFor();
    for (const width of [1280, 320]) {
      await tab.page.setViewportSize({ width, height: 900 });
      await check(tab, `login, ${colorScheme}, ${width} px`, width);
    }
  }
  same(violations.join('\n'), '');
  outlines.save();
  // A part of a page may come after its sign, so one of the two visits can miss a dialog.
  return { visited, dialogs: [Math.max(...dialogs)] };
});
