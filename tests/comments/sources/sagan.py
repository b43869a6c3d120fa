"""Self attention GAN, non-local block on feature maps (B, C, W, H)."""
import torch
import torch.nn as nn


class Self_Attn(nn.Module):
    """ Self attention Layer"""

    def __init__(self, in_dim):
        super(Self_Attn, self).__init__()
        self.chanel_in = in_dim
        # three 1 x 1 convs
        self.query_conv = nn.Conv2d(in_dim, in_dim // 8, kernel_size=1)
        self.key_conv = nn.Conv2d(in_dim, in_dim // 8, kernel_size=1)
        self.value_conv = nn.Conv2d(in_dim, in_dim, kernel_size=1)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.softmax = nn.Softmax(dim=-1)  # (over keys)

    def forward(self, x):
        """
            inputs :
                x : input feature maps (B X C X W X H)
            returns :
                out : self attention value + input feature
                attention: B X N X N (N is Width*Height)
        """
        B, C, W, H = x.size()
        N = W * H
        E = C // 8
        proj_query = self.query_conv(x).view(B, -1, N).permute(0, 2, 1)  # B X N X E
        proj_key = self.key_conv(x).view(B, -1, N)  # B X E X N
        energy = torch.bmm(proj_query, proj_key)  # transpose check: B X N X N
        attention = self.softmax(energy)  # B X (N) X (N)
        proj_value = self.value_conv(x).view(B, -1, N)  # B X C X N

        out = torch.bmm(proj_value, attention.permute(0, 2, 1))  # B x C x N
        out = out.view(B, C, W, H)  # [B, C, W, H]

        # out = self.gamma * out + x  [see eq. (3)]
        out = self.gamma * out + x
        return out, attention  # (B, C, W, H), (B, N, N)
