// What a person can find on a page, by role and name, compared with a file.

import { readFileSync, writeFileSync } from 'node:fs';
import { untilEqual } from './browser.mjs';

/** Whether the files are written instead of compared. */
export const IS_UPDATE = Boolean(process.env.UPDATE);

// Texts and figures are no part of an outline, rows that are alike count once, and numbers and ports
// are left out of names. Links that follow each other are sorted, because rows change places.
const ROLES = /^(banner|navigation|main|heading|region|form|search|dialog|table|columnheader|button|link|textbox|searchbox|combobox|checkbox|radio|group|img|status|alert)$/;

function outline(snapshot) {
  const lines = snapshot.split('\n').map(line => {
    const [, indent, role, rest] = /^( *)- '?(\w+)(.*)$/.exec(line) ?? [];
    return role && ROLES.test(role) ? `${role}${nameOf(rest)}` : null;
  });
  const runs = [];
  for (const line of lines.filter((each, index) => each && !lines.slice(0, index).includes(each))) {
    const isLink = line.startsWith('link') && runs.at(-1)?.[0].startsWith('link');
    isLink ? runs.at(-1).push(line) : runs.push([line]);
  }
  return runs.flatMap(run => run.sort());
}

function nameOf(rest) {
  const [, name, level] = /^(?: "((?:[^"\\]|\\.)*)")?.*?((?: \[level=\d\])?)/.exec(rest);
  const plain = name?.replace(/:\d+\//g, '/').replace(/\d[\d.,:]*/g, '0')
    .replace(/@[\w.-]+/g, '@machine');
  return `${plain ? ` ${plain}` : ''}${level}`;
}

/** The outlines in a file, by name. */
export class Outlines {
  #file;
  #known;

  constructor(file) {
    this.#file = file;
    this.#known = IS_UPDATE ? {} : JSON.parse(readFileSync(file, 'utf8'));
  }

  /** Compares; a part of a page may come later than the sign of the page. */
  async expect({ page }, name, place = 'main') {
    const read = async () => outline(await page.locator(place).ariaSnapshot());
    if (IS_UPDATE) {
      await page.waitForTimeout(2_000);
      this.#known[name] = await read();
      return;
    }
    await untilEqual(`the roles and names of ${name}`, read, this.#known[name]);
  }

  /** Writes the file if that is wanted. */
  save() {
    if (IS_UPDATE) {
      writeFileSync(this.#file, `${JSON.stringify(this.#known, null, 1)}\n`);
    }
  }
}
