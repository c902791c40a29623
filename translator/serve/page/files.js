// Files, chosen or dropped on the page, translated one after the other.

import { $, element } from "./dom.js";
import { Unavailable, languagesAsked, request } from "./requests.js";
import { state } from "./state.js";
import { announce, showError } from "./status.js";

const FAILURES = 5; // of one file, before it is given up
const list = $("files"), input = $("file");

let queue = Promise.resolve();

function add(files) {
  if (!state.settings.filesTranslation) return showError("Translation of files is disabled on this server.");
  for (const file of files) {
    const note = element("span", { className: "note", textContent: "Waiting" });
    const item = element("li", {}, element("span", { className: "name", dir: "auto", textContent: file.name }), note);
    list.append(item);
    list.hidden = false;
    const languages = languagesAsked();
    queue = queue.then(() => translate(file, languages, item, note));
  }
}

async function translate(file, languages, item, note) {
  note.textContent = "Translating…";
  item.classList.add("waiting");
  try {
    const { translatedFileUrl, warnings = [] } = await send(file, languages);
    const path = translatedFileUrl.slice(translatedFileUrl.indexOf("download_file/")); // on this server, however it is reached
    const name = decodeURIComponent(path.split("/").at(-1));
    const link = element("a", { href: path, download: name, textContent: `Download ${name}` });
    link.addEventListener("click", () => setTimeout(() => note.replaceChildren("Downloaded"))); // it can be had once
    note.replaceChildren(link);
    item.append(...warnings.map(warning => element("span", { className: "warning", textContent: warning })));
    announce(`${name} is ready.`);
  } catch (error) {
    note.textContent = error.message;
    note.classList.add("failed");
    announce(`${file.name}: ${error.message}`);
  }
  item.classList.remove("waiting");
}

async function send(file, languages) {
  for (let failures = 0; ; failures++) {
    const body = new FormData();
    for (const [name, value] of Object.entries({ ...languages, api_key: $("key").value })) body.append(name, value);
    body.append("file", file);
    try {
      return await request("translate_file", { method: "POST", body });
    } catch (error) {
      if (!(error instanceof Unavailable) || failures === FAILURES) throw error;
      await new Promise(done => setTimeout(done, error.wait(failures)));
    }
  }
}

export function startFiles() {
  $("choose-file").hidden = !state.settings.filesTranslation;
  input.accept = state.settings.supportedFilesFormat.join();
}

$("choose-file").addEventListener("click", () => input.click());
input.addEventListener("change", () => {
  add([...input.files]);
  input.value = ""; // the same file may be chosen again
});

const hasFiles = event => event.dataTransfer?.types.includes("Files");

addEventListener("dragover", event => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", event => {
  if (!event.relatedTarget) document.body.classList.remove("dropping");
});
addEventListener("drop", event => {
  document.body.classList.remove("dropping");
  if (!hasFiles(event)) return;
  event.preventDefault();
  add([...event.dataTransfer.files]);
});
