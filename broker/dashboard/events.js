// What the payload of an event says.

import { bytes, count } from './format.js';

const ATTRIBUTE = /^([A-Za-z][A-Za-z0-9._-]*)=(.*)$/su;

/**
 * The target and the attributes of a payload: `{target, attributes}`, a `Map` in which the first
 * value of a name counts. A payload that is only text has the target `null`.
 */
export function parse(payload) {
  const [target, ...words] = payload.split(/[ \t]+/u).filter(word => word !== '');
  const pairs = words.map(word => ATTRIBUTE.exec(word));
  if (!/^([a-z][a-z0-9+.-]*:\/\/.|\/)/iu.test(target ?? '') || pairs.includes(null)) {
    return { target: null, attributes: new Map() };
  }
  const attributes = new Map();
  for (const [, name, value] of pairs) {
    if (!attributes.has(name)) {
      attributes.set(name, value);
    }
  }
  return { target, attributes };
}

/** Milliseconds of a duration such as `250ms`, `30s` or `7d`; `null` for another text. */
export function milliseconds(text) {
  const [, number, unit] = /^(\d+)(ms|s|m|h|d)$/u.exec(text) ?? [];
  const sizes = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
  return unit ? Number(number) * sizes[unit] : null;
}

/** The number of bytes in a size such as `64m`; `null` for another text. */
export function byteCount(text) {
  const [, number, unit] = /^(\d+)([kmg]?)$/u.exec(text) ?? [];
  return number ? Number(number) * { '': 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 }[unit] : null;
}

/** A size as it is set, such as `1g`, with its unit: `1 GiB`. */
export function size(text) {
  const [, number, unit] = /^(\d+)([kmg])$/u.exec(text) ?? [];
  return unit ? `${count(Number(number))} ${unit.toUpperCase()}iB`
    : bytes(byteCount(text));
}
