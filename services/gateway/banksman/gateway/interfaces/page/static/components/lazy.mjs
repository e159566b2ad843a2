/** Components whose modules are loaded when they are first shown. */

import { useEffect, useState } from 'preact/hooks';

import { html } from './ui.mjs';

/**
 * @param {() => Promise<object>} load imports the module
 * @param {string} name the export that is the component
 * @param {Function} Placeholder is shown with the same properties until the module is loaded, and if loading fails
 */
export function lazy(load, name, Placeholder = () => null) {
  let Loaded = null;
  return function Lazy(properties) {
    const [, setReady] = useState(false);
    useEffect(() => {
      if (Loaded) return undefined;
      let current = true;
      const show = (module) => {
        Loaded = module[name];
        if (current) setReady(true);
      };
      load().then(show, () => {});
      return () => (current = false);
    }, []);
    const Shown = Loaded ?? Placeholder;
    return html`<${Shown} ...${properties} />`;
  };
}
