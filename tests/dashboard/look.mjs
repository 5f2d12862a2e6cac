// Every page in light and dark, wide and narrow: what axe finds, and the tree of roles and names.
// usage: look.mjs ADDRESS OPERATOR FILE; with UPDATE=1 in the environment, FILE is written

import { readFileSync, writeFileSync } from 'node:fs';
import { deepEqual, strictEqual as same } from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { axeViolations, main, openTab, until } from './browser.mjs';
import { pages, show } from './pages.mjs';

const [address, token, file] = process.argv.slice(2);

// What a person can find by role and name. Texts and figures are no part of it, rows that are alike
// count once, and numbers and units are left out of names.
const ROLES = /^(banner|navigation|main|heading|region|form|search|dialog|table|columnheader|button|link|textbox|searchbox|combobox|checkbox|radio|group|img|status|alert)$/;

function outline(snapshot) {
  const lines = snapshot.split('\n').map(line => {
    const [, indent, role, rest] = /^( *)- '?(\w+)(.*)$/.exec(line) ?? [];
    return role && ROLES.test(role) ? `${role}${nameOf(rest)}` : null;
  });
  return lines.filter((line, index) => line && !lines.slice(0, index).includes(line));
}

function nameOf(rest) {
  const [, name, level] = /^(?: "((?:[^"\\]|\\.)*)")?.*?((?: \[level=\d\])?)/.exec(rest);
  return `${name ? ` ${name.replace(/\d[\d.,:]*/g, '0').replace(/@[\w.-]+/g, '@machine')}` : ''}${level}`;
}

const outlineOf = async (tab, place) => outline(await tab.page.locator(place).ariaSnapshot());

// Compares with the file; a part of a page may come later than the sign of the page.
const known = process.env.UPDATE ? {} : JSON.parse(readFileSync(file, 'utf8'));
async function expectOutline(tab, name, place) {
  if (process.env.UPDATE) {
    await tab.page.waitForTimeout(2_000);
    known[name] = await outlineOf(tab, place);
    return;
  }
  let found;
  await until(`the outline of ${name}`, async () => {
    found = await outlineOf(tab, place);
    return isDeepStrictEqual(found, known[name]);
  }).catch(() => deepEqual(found, known[name], `the roles and names of ${name}`));
}

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
        if (width === 1280 && colorScheme === 'light') {
          await expectOutline(tab, name, 'main');
        }
        visited += 1;
      }
    }
    await expectOutline(tab, 'menu', 'header.top');
  }
  same(violations.join('\n'), '');
  if (process.env.UPDATE) {
    writeFileSync(file, `${JSON.stringify(known, null, 1)}\n`);
  }
  return { visited };
});
