// Storage of the browser, which may refuse it or be full: then nothing is kept.

export function load(area, key, otherwise) {
  try {
    return JSON.parse(window[area].getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function save(area, key, value) {
  try {
    window[area].setItem(key, JSON.stringify(value));
  } catch {
    // Nothing to do: the page works without.
  }
}

export function remove(area, key) {
  try {
    window[area].removeItem(key);
  } catch {
    // As above.
  }
}
