// Elements of the page.

export const $ = id => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A quoted text, which may run in the other direction.
export const quoted = text => ["“", element("bdi", { textContent: text }), "”"];

// Replace what is in the text field, so that Ctrl+Z brings it back.
export function replaceText(value) {
  const text = $("text");
  if (text.value === value) return;
  text.focus();
  text.select();
  if (document.execCommand(value ? "insertText" : "delete", false, value)) return;
  text.value = value;
  text.dispatchEvent(new Event("input"));
}

// Move the focus among buttons by the arrow keys.
export function moveByArrows(list) {
  list.addEventListener("keydown", event => {
    const buttons = [...list.querySelectorAll("button")], place = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: buttons.length - 1 };
    if (!(event.key in to)) return;
    event.preventDefault();
    buttons[to[event.key]]?.focus();
  });
}
