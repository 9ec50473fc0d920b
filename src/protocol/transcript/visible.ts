/**
 * Matches control characters, those that change the direction of text, and those without width: model output must not
 * be able to disguise itself. Line breaks and tabs are excluded, and the joiners that emoji and Persian need.
 */
const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression matches control characters
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu

/**
 * Matches the terminal's sequences for colours and styles (ECMA-48 SGR), and `erase in line`, which `grep --color` adds
 * to each. Other sequences are not matched: a text that moves the cursor may disguise itself.
 */
// biome-ignore lint/suspicious/noControlCharactersInRegex: ESC begins the sequences
const STYLES = /\u001b\[[\d;:]*[mK]/g

/** Removes the terminal's colours and styles, which tools add to their output. */
export function stripStyles(text: string): string {
  return text.replace(STYLES, '')
}

/** Returns whether a text has nothing to show: at most white space and styles. */
export function isBlank(text: string): boolean {
  return stripStyles(text).trim() === ''
}

/**
 * Removes styles and replaces other hidden characters with visible names, so that the text is safe to show in a page
 * and in a terminal.
 */
export function revealInvisible(text: string): string {
  return revealExactly(stripStyles(text))
}

/**
 * Replaces all hidden characters with visible names, including those of styles. It is
 * intended for the text of tokens, which must stay complete.
 */
export function revealExactly(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0)!
    return `⟨${code < 0x20 ? CONTROL[code]! : `U+${code.toString(16).toUpperCase().padStart(4, '0')}`}⟩`
  })
}

/** Escapes hidden characters in JSON. The value stays the same. */
export function escapeInvisible(json: string): string {
  return json.replace(HIDDEN, (character) =>
    character
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join(''),
  )
}

const CONTROL =
  'NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US'.split(
    ' ',
  )
