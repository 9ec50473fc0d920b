/** Renders Markdown. All elements are created here, so that text cannot become HTML and no resource is loaded. */
import { lexer, type MarkedToken, type Token, type Tokens } from 'marked'
import type { ComponentChildren } from 'preact'
import { useMemo } from 'preact/hooks'
import { revealInvisible, stripStyles } from '../lib/format.ts'

export function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => lexer(stripStyles(text)), [text])
  return <div class="markdown">{renderBlocks(tokens)}</div>
}

function renderBlocks(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, index) => <MarkdownToken key={index} token={token as MarkedToken} />)
}

/** Renders the child tokens of a token, or its text if it has none. */
function renderChildren(token: { tokens?: Token[]; text?: string; raw: string }): ComponentChildren {
  return token.tokens === undefined ? revealInvisible(token.text ?? token.raw) : renderBlocks(token.tokens)
}

function MarkdownToken({ token }: { token: MarkedToken }) {
  switch (token.type) {
    case 'space':
    case 'def':
      return null
    case 'heading':
      return <p class={`heading level-${token.depth}`}>{renderChildren(token)}</p>
    case 'paragraph':
      return <p>{renderChildren(token)}</p>
    case 'strong':
      return <strong>{renderChildren(token)}</strong>
    case 'em':
      return <i>{renderChildren(token)}</i>
    case 'del':
      return <s>{renderChildren(token)}</s>
    case 'br':
      return <br />
    case 'hr':
      return <hr />
    case 'code':
      return <pre class="code">{revealInvisible(token.text)}</pre>
    case 'codespan':
      return <code>{revealInvisible(token.text)}</code>
    case 'blockquote':
      return <blockquote>{renderChildren(token)}</blockquote>
    case 'list':
      return <List token={token} />
    case 'table':
      return <Table token={token} />
    case 'link':
      return <Link token={token} />
    case 'image':
      return <code>{revealInvisible(token.raw)}</code>
    case 'html':
      return <>{revealInvisible(token.raw)}</>
    default:
      return <>{renderChildren(token as { tokens?: Token[]; text?: string; raw: string })}</>
  }
}

function List({ token: { ordered, start, items } }: { token: Tokens.List }) {
  const entries = items.map((item, index) => (
    <li key={index}>
      {item.task && (item.checked ? '☑ ' : '☐ ')}
      {renderChildren(item)}
    </li>
  ))
  return ordered ? <ol start={Number(start) || 1}>{entries}</ol> : <ul>{entries}</ul>
}

function Table({ token: { header, rows } }: { token: Tokens.Table }) {
  return (
    <table class="plain-table">
      <thead>
        <tr>
          {header.map((cell, index) => (
            <th key={index}>{renderBlocks(cell.tokens)}</th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, line) => (
          <tr key={line}>
            {row.map((cell, index) => (
              <td key={index}>{renderBlocks(cell.tokens)}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  )
}

/** A link as text with its URL. It cannot be followed, because a model may have written it. */
function Link({ token }: { token: Tokens.Link }) {
  return (
    <>
      {renderChildren(token)}
      {token.text !== token.href && <span class="quiet"> ({revealInvisible(token.href)})</span>}
    </>
  )
}
