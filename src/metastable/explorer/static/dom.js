// Small helpers for elements. Text is always set as text: nothing that comes from a setting or a server is ever read as HTML.

export const $ = (selector) => document.querySelector(selector);

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function options(select, entries, chosen) {
  const same = select.options.length === entries.length && entries.every(([value, name], i) => select.options[i].value === value && select.options[i].text === name);
  if (!same) select.replaceChildren(...entries.map(([value, name]) => el("option", { value }, name)));
  if (chosen !== undefined) select.value = chosen;
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function saveFile(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
