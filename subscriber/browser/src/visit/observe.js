// Returns how often the document has changed, and whether it is loaded. Runs in a world of its own,
// where scripts of the page cannot replace what it calls.
(() => {
  if (!globalThis.observed) {
    globalThis.observed = { changes: 0 };
    const count = (records) => { globalThis.observed.changes += records.length; };
    new MutationObserver(count).observe(document, {
      attributes: true, characterData: true, childList: true, subtree: true,
    });
  }
  return [globalThis.observed.changes, document.readyState === "complete"];
})()
