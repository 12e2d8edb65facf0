// Light, dark, or as the system has it. Not a module: it runs before the page is painted, so that nothing flashes.

(() => {
  const NAMES = { auto: "as the system", light: "light", dark: "dark" };
  const next = { auto: "light", light: "dark", dark: "auto" };

  function kept() {
    try {
      return localStorage.getItem("slm.theme") in NAMES ? localStorage.getItem("slm.theme") : "auto";
    } catch {
      return "auto";
    }
  }

  function use(theme) {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    button.setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
    button.title = button.getAttribute("aria-label");
    button.firstElementChild.className = `icon i-theme-${theme}`;
  }

  use(kept());
  document.addEventListener("DOMContentLoaded", () => {
    use(kept());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = next[document.documentElement.dataset.theme];
      try {
        localStorage.setItem("slm.theme", theme);
      } catch {
        // as long as the page is open
      }
      use(theme);
    });
  });
})();
