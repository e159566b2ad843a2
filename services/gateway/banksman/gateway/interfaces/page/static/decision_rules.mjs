/** Rules for everyone that are made from a request. Pure. */

/**
 * The part of a call that a rule for everyone compares: the words of a command, a path, a host, or the tool.
 *
 * @param {ApprovalItem} item
 */
export function ruleCovers(item) {
  const by = item.begins ? 'begins' : item.covers?.by;
  return by === 'arguments' && !['bash', 'web_fetch'].includes(item.name) ? 'tool' : by;
}

/** The rules about the calls that are like one; null if no rule can describe them. @param {ApprovalItem} item */
export function rulesFor(item) {
  const { path, url } = /** @type {Record<string, string>} */ (item.arguments);
  const rule = (/** @type {Record<string, string>} */ given) => ({ tool: item.name, arguments: given });
  switch (ruleCovers(item)) {
    case 'begins':
      return [rule({ command: item.begins ?? '' }), rule({ command: `${item.begins} -*` })];
    case 'path':
      return /[*?[\]]/.test(path) ? null : [rule({ path })];
    case 'host':
      return [rule({ url: `${new URL(url).origin}/*` })];
    case 'tool':
      return [rule({})];
    default:
      return null;
  }
}

/**
 * Rules with one more: before the first that asks, but after all that deny. The first match decides.
 *
 * @param {Rule[]} rules
 * @param {Rule[]} added
 */
export function withRules(rules, added) {
  const denied = rules.findLastIndex((rule) => rule.action === 'deny');
  const asks = rules.findIndex((rule, at) => rule.action === 'ask' && at > denied);
  return rules.toSpliced(asks < 0 ? rules.length : asks, 0, ...added);
}
