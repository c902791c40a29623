// Light, dark, or as the system has it. A plain script in the head, so that no frame is drawn in other colours.
{
  const KEY = "theme", root = document.documentElement;

  const stored = () => {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto";
    }
  };

  const choose = theme => {
    root.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It holds until the page is left.
    }
  };

  root.dataset.theme = stored();
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = root.dataset.theme;
    select.addEventListener("change", () => choose(select.value));
  });
}
