// Text and languages by the address, and kept when the page is loaded again.

import { $ } from "./dom.js";
import { on } from "./state.js";
import { load, save } from "./storage.js";

const KEY = "text";

// Return what is to be translated: by ?q=&source=&target=, by the same behind #, or as it was when the page was left.
export function initial() {
  const { q, source, target } = fromAddress();
  return q === undefined && !source && !target ? load("sessionStorage", KEY, {}) : { q, source, target };
}

// What the address names; it is then taken out of it, so that a reload keeps what was typed since.
export function fromAddress() {
  const named = { ...Object.fromEntries(new URLSearchParams(location.search)), ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  if (location.search || location.hash) history.replaceState(null, "", location.pathname);
  return named;
}

const current = () => ({ q: $("text").value, source: $("source").value, target: $("target").value });

// Behind #, which browsers keep to themselves: the text reaches no server's log.
export function link() {
  return `${location.origin}${location.pathname}#${new URLSearchParams(current())}`;
}

on("changed", () => {
  save("sessionStorage", KEY, current());
  if (location.hash) history.replaceState(null, "", location.pathname);
});
