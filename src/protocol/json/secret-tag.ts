/**
 * Identifies bytes by a 16-byte tag. The tags are those of GMAC (NIST SP 800-38D) under a key that only this process
 * has, in memory. Two texts chosen without knowledge of the key collide with a probability of about 2 to the power of
 * minus 112 for a text of a megabyte. It is many times as fast as a hash function, as fast as comparing the bytes.
 *
 * The nonce is constant, which GMAC forbids for tags that are published: the key could be computed from several of
 * them. These tags are never sent, stored or shown.
 */
import { createCipheriv, createSecretKey, type KeyObject, randomBytes } from 'node:crypto'

const NONCE = Buffer.alloc(12)

/** A KeyObject that is created once, because creating one takes Node many times as long as computing a tag. */
let key: KeyObject | undefined

/** Returns the tag as 16 characters. */
export function computeSecretTag(bytes: Buffer): string {
  key ??= createSecretKey(randomBytes(16))
  const cipher = createCipheriv('aes-128-gcm', key, NONCE)
  cipher.setAAD(bytes)
  cipher.final()
  return cipher.getAuthTag().toString('latin1')
}
