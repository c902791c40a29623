// Recent translations, kept in this browser until they are removed or switched off.

import { $, element, moveByArrows } from "./dom.js";
import { languagesAsked } from "./requests.js";
import { on, state } from "./state.js";
import { load, remove, save } from "./storage.js";
import { wholeText } from "./words.js";

const AREA = "localStorage", KEY = "recent", SWITCH = "recent-off";
const MOST = 30, MOST_CHARACTERS = 200_000;
const PAUSE = 2000; // milliseconds without a change, after which a translation is kept
const dialog = $("recent"), keep = $("keep-recent"), list = $("recent-list");

let timer = 0;

const same = (one, other) => one.source === other.source && one.target === other.target;

function remember() {
  if (!keep.checked || !state.drawn.trim() || state.drawn !== $("text").value) return;
  const entry = { q: state.drawn, ...languagesAsked(true), translation: wholeText() };
  if (!entry.translation.trim()) return;
  const others = load(AREA, KEY, []).filter(({ q, ...pair }, place) =>
    !(same(pair, entry) && (q === entry.q || place === 0 && entry.q.startsWith(q)))); // typed on since
  const entries = [entry, ...others].slice(0, MOST);
  while (entries.length && JSON.stringify(entries).length > MOST_CHARACTERS) entries.pop();
  save(AREA, KEY, entries);
}

function draw(restore) {
  const entries = keep.checked ? load(AREA, KEY, []) : [];
  $("recent-note").textContent = entries.length ? "" : keep.checked ? "Nothing yet." : "Nothing is kept.";
  $("clear-recent").hidden = !entries.length;
  list.replaceChildren(...entries.map(entry => {
    const button = element("button", { type: "button" },
      element("span", { className: "choice", dir: "auto", lang: entry.source, textContent: entry.q }),
      element("span", { className: "whole", dir: "auto", lang: entry.target, textContent: entry.translation }));
    button.addEventListener("click", () => {
      dialog.close();
      restore(entry);
    });
    return element("li", {}, button);
  }));
}

// restore: shows an entry's text and languages.
export function startRecent(restore) {
  keep.checked = !load(AREA, SWITCH, false);
  $("open-recent").addEventListener("click", () => {
    remember();
    draw(restore);
    dialog.showModal();
  });
  keep.addEventListener("change", () => {
    save(AREA, SWITCH, !keep.checked);
    if (!keep.checked) remove(AREA, KEY);
    draw(restore);
  });
  $("clear-recent").addEventListener("click", () => {
    remove(AREA, KEY);
    draw(restore);
  });
}

on("changed", () => clearTimeout(timer));
on("drawn", () => {
  clearTimeout(timer);
  timer = setTimeout(remember, PAUSE);
});
$("close-recent").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", event => {
  if (event.target === dialog) dialog.close(); // beside it
});
moveByArrows(list);
