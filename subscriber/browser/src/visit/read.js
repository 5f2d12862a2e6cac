// Returns the document as it is: its HTML with its open shadow roots, and its links.
((charsMax, nodesMax, linksMax) => {
  const root = document.documentElement;
  const result = { url: document.URL, title: document.title.slice(0, 1024), links: [], html: "" };
  result.height = root ? Math.ceil(root.scrollHeight) : 0;
  result.width = root ? Math.ceil(root.clientWidth) : 0;
  if (!root) return result;
  const shadowRoots = [];
  const scopes = [document];
  let nodes = 0;
  while (scopes.length) {
    const elements = scopes.pop().querySelectorAll("*");
    nodes += elements.length;
    if (nodes > nodesMax) return { ...result, excess: `${nodes} elements or more` };
    for (const element of elements) {
      if (element.shadowRoot) {
        shadowRoots.push(element.shadowRoot);
        scopes.push(element.shadowRoot);
      }
      const isLink = element instanceof HTMLAnchorElement || element instanceof HTMLAreaElement;
      if (isLink && element.hasAttribute("href") && result.links.length < linksMax) {
        if (element.href.length < 8192) result.links.push([element.href, element.rel]);
      }
    }
  }
  const type = document.doctype ? "<!DOCTYPE html>" : "";
  const tag = root.cloneNode(false).outerHTML;
  const end = tag.lastIndexOf("</");
  const start = end < 0 ? [tag, ""] : [tag.slice(0, end), tag.slice(end)];
  const html = type + start[0] + root.getHTML({ shadowRoots }) + start[1];
  if (html.length > charsMax) return { ...result, excess: `${html.length} characters of HTML` };
  return { ...result, html };
})
