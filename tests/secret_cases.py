"""What must not be shown and what must: names with values, for every ring. No two values share a word."""

from __future__ import annotations

SECRET = {
    "HF_TOKEN": "hush01-a8Kq", "WANDB_KEY": "hush02-a8Kq", "SIGNING_KEY": "hush03-a8Kq", "DB_PASSWD": "hush04-a8Kq",
    "MY_CREDENTIALS": "hush05-a8Kq", "GPG_PASSPHRASE": "hush06-a8Kq", "MYSQL_PWD": "hush07-a8Kq",
    "SMTP_PASS": "hush08-a8Kq", "GITHUB_PAT": "hush09-a8Kq", "API_BEARER": "hush10-a8Kq", "AUTH_TOKEN": "hush11-a8Kq",
    "AUTH_KEY": "hush12-a8Kq", "PGPASSWORD": "hush13-a8Kq", "CLIENTSECRET": "hush14-a8Kq",
    "AWS_SECRET_ACCESS_KEY": "hush15/a8Kq+x==", "OPENAI_APIKEY": "hush16-a8Kq", "API_TOKENS": "hush17-a8Kq",
    "HFTOKEN": "hush18-a8Kq", "PASSWORD": "hush19-a8Kq", "db_password": "hush20-a8Kq", "HF_TOKEN_2": "hush21-a8Kq",
    "NGC_API_KEY_PROD": "hush22-a8Kq", "SERVICE_CRED": "hush23-a8Kq", "VAULT_SECRETS": "hush24-a8Kq",
    "REGISTRY_AUTHKEY": "hush25-a8Kq", "KEY": "hush26-a8Kq", "BATCH_PASSWORD": "871409355512",
    "PIN_SECRET": "004755512817",
    # innocent names
    "GREETING": "hf_hush28aaaaaaaaaaaaaaaa", "HTTPS_PROXY": "http://ada:hush29-a8Kq@proxy:3128/",
    "ENDPOINT_HEADER": "Authorization: Bearer hush30-a8Kq", "NOTE": "sk-hush31aaaaaaaaaaaaaaaa",
    "EXTRA": "AKIAHUSH32AAAAAAAAAA", "CERT": "-----BEGIN PRIVATE KEY-----hush33aaaa",
    "HELLO": "eyJhbGciOiJIUzI1NiJ9.eyJodXNoMzQiOjF9.hush34", "REMARK": "glpat-hush35aaaaaaaaaaaa",
}  # fmt: skip
"""By name; the last ones are secret by the form of their values."""

INNOCENT = {
    "KEYBOARD_LAYOUT": "open01-us", "MONKEY": "open02-see", "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "open04-a",
    "RAY_AUTH_MODE": "open05-token", "BYPASS": "open06-cache", "SSL_KEY_PATH": "open07/key.pem",
    "HF_TOKEN_FILE": "open08/token", "SECRET_MODE": "open09-strict", "SIGNING_KEY_FILE": "open10/sign",
    "RETRY_TOKEN": "4096", "USE_AUTH_TOKEN": "True", "NUM_KEYS": "17", "TURKEY": "open14-roast",
    "COMPASS": "open15-north", "PATTERN": "open16-x", "OLDPWD_HINT": "open17-x", "SSL_KEY": "/etc/ssl/open18/key.pem",
    "GOOGLE_APPLICATION_CREDENTIALS": "/etc/open19/account.json", "AUTHOR": "open20-ada", "PAD_TOKEN": "<open21>",
    "PUBLIC_KEY": "open22-ed25519", "KEY_VALUE_STORE": "open23-redis", "REQUIRE_PASSWORD": "1", "PASSES": "open25-two",
    "DETOKENIZE": "open26-on", "TOKENIZER_MODE": "open27-slow", "PROXY": "http://open28.example:3128/@x",
}  # fmt: skip
