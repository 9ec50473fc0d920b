/** Reads the built script and style sheet of the inspector. */

import { readAsset } from '../../base/assets.ts'
import { ProxyError } from '../../base/errors.ts'

interface PageSource {
  script: string
  style: string
}

export const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">\
<path fill="#7ea3cb" d="M1 3h6v10H1z"/><path fill="#e2b366" d="M7 3h3v10H7z"/><path fill="#2f8f6b" d="M10 3h5v10h-5z"/></svg>`

/** Reads the build result. @throws ProxyError `internal` if the page has not been built */
export function readPageSource(): PageSource {
  try {
    return JSON.parse(Buffer.from(readAsset(new URL('page.json', import.meta.url))).toString()) as PageSource
  } catch (cause) {
    const message = 'The inspector has not been built: run npm run build:page'
    throw new ProxyError('internal', message, { cause })
  }
}
