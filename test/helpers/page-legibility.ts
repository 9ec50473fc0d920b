/** Measures, in a browser, whether the texts of a page can be read: contrast and horizontal overflow. */
import type { Page } from 'playwright-core'

/** A text that a reader cannot see well, and how badly. */
interface FaintText {
  text: string
  element: string
  ratio: number
}

/** Returns the visible texts below the contrast of WCAG 2.2 AA (success criterion 1.4.3). */
export async function findFaintTexts(page: Page): Promise<FaintText[]> {
  return (await page.evaluate(`(${faintTexts})()`)) as FaintText[]
}

/** Returns texts that the window cuts off horizontally and that no scrolling reveals. */
export async function findCutTexts(page: Page): Promise<string[]> {
  return (await page.evaluate(`(${cutTexts})()`)) as string[]
}

/**
 * Runs in the page. Computes the colours that are drawn: the backgrounds of all ancestors, translucent colours and
 * opacity are composed (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
 */
const faintTexts = /* js */ `() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })
  const known = new Map()
  const toColour = (css) => {
    if (!known.has(css)) {
      canvas.clearRect(0, 0, 1, 1)
      canvas.fillStyle = css
      canvas.fillRect(0, 0, 1, 1)
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
      known.set(css, { rgb: [r, g, b], alpha: a / 255 })
    }
    return known.get(css)
  }
  const mix = (over, under, alpha) => over.map((value, at) => value * alpha + under[at] * (1 - alpha))
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const drawn = (element, style, css) => {
    const ancestors = []
    for (let at = element; at !== null; at = at.parentElement) ancestors.unshift(at)
    let under = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255]
    const groups = []
    for (const ancestor of ancestors) {
      const { backgroundColor, opacity } = getComputedStyle(ancestor)
      if (opacity !== '1') groups.unshift({ under, opacity: Number(opacity) })
      const { rgb, alpha } = toColour(backgroundColor)
      under = mix(rgb, under, alpha)
    }
    if (style.opacity !== getComputedStyle(element).opacity) groups.unshift({ under, opacity: Number(style.opacity) })
    const { rgb, alpha } = toColour(css)
    let over = mix(rgb, under, alpha)
    for (const group of groups) {
      over = mix(over, group.under, group.opacity)
      under = mix(under, group.under, group.opacity)
    }
    return [over, under]
  }
  const contrast = (element, style) => {
    const [bright, dark] = drawn(element, style, style.color).map(luminance).sort((a, b) => b - a)
    return (bright + 0.05) / (dark + 0.05)
  }
  const nameOf = (element) => element.tagName.toLowerCase() + [...element.classList].map((name) => '.' + name).join('')
  const faint = []
  const judge = (element, style, text, part = '') => {
    const size = Number.parseFloat(style.fontSize)
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
    const ratio = contrast(element, style)
    if (ratio >= (isLarge ? 3 : 4.5)) return
    const parent = element.parentElement
    faint.push({ text: text.trim().slice(0, 40), element: nameOf(parent) + ' > ' + nameOf(element) + part, ratio: Math.round(ratio * 100) / 100 })
  }
  const isDrawn = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest('.unseen')
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
    const element = node.parentElement
    if (node.data.trim() === '' || !isDrawn(element) || element.closest('script, style, option, title')) continue
    judge(element, getComputedStyle(element), node.data)
  }
  for (const element of document.querySelectorAll('body *')) {
    for (const part of ['::before', '::after']) {
      const style = getComputedStyle(element, part)
      const { content } = style
      if (content !== 'none' && content !== 'normal' && content !== '""' && isDrawn(element)) judge(element, style, content, part)
    }
    if (element.matches(':placeholder-shown')) judge(element, getComputedStyle(element, '::placeholder'), element.placeholder, '::placeholder')
  }
  return faint
}`

/** Runs in the page. */
const cutTexts = /* js */ `() => {
  const cut = []
  if (document.documentElement.scrollWidth > innerWidth) cut.push('the page: ' + document.documentElement.scrollWidth)
  const nameOf = (element) => element.tagName.toLowerCase() + [...element.classList].map((name) => '.' + name).join('')
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = texts.nextNode(); node !== null; node = texts.nextNode()) {
    const element = node.parentElement
    if (node.data.trim() === '' || element.closest('script, style, option, title, .unseen')) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    const { left, right, width } = range.getBoundingClientRect()
    if (width === 0) continue
    for (let at = element; at !== null; at = at.parentElement) {
      const { overflowX, textOverflow } = getComputedStyle(at)
      if (overflowX === 'visible' && at.parentElement !== null) continue
      if (textOverflow === 'ellipsis' && at.clientWidth >= 30) break
      const box = at.parentElement === null ? { left: 0, right: innerWidth } : at.getBoundingClientRect()
      const isScrolled = overflowX === 'auto' || overflowX === 'scroll'
      const isOut = right > box.right + 1 || left < box.left - 1
      if (isOut && !isScrolled) cut.push(nameOf(at) + ' cuts ' + nameOf(element) + ' "' + node.data.trim().slice(0, 30) + '"')
      if (isScrolled || isOut) break
    }
  }
  return [...new Set(cut)]
}`
