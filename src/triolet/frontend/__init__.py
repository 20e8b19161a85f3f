"""What the three front ends share: text to requests, tokens to text, one mailbox for each request."""
