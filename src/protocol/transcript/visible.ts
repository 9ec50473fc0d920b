/**
 * Matches control characters, those that change the direction of text, and those without width: model output must not
 * be able to disguise itself. Line breaks and tabs are excluded, and the joiners that emoji and Persian need.
 */
const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu

/** Replaces hidden characters with visible names, so that the text is safe to show in a page and in a terminal. */
export function revealInvisible(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0)!
    return `⟨${code < 0x20 ? CONTROL[code]! : `U+${code.toString(16).toUpperCase().padStart(4, '0')}`}⟩`
  })
}

const CONTROL =
  'NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US'.split(
    ' ',
  )
