// Small values that this browser keeps: settings, presets, tools.

// The value under a name, or null.
export function kept(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

// Keeps a value; where the browser refuses, it lives as long as the page.
export function keepValue(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // switched off or full
  }
}
